"""The experiments of the paper "Training PPO-Clip with Parallelized Data Generation"."""
