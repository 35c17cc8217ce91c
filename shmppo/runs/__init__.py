"""Training runs: the training loop, checkpoints, the files of a run, and evaluation."""
