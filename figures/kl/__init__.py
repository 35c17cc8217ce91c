"""KL divergences within updates of PPO, and between updates on subsets of the environments."""
