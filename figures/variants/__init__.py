"""Returns and KL of three PPO objectives."""
