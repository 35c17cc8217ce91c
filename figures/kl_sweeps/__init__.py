"""KL profiles of PPO updates for several batch shapes, minibatch sizes, and objectives."""
