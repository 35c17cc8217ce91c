"""Time per environment step against the number of environments, the rollout length, and the hidden size."""
