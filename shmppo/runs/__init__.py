"""Training runs: the training loop, checkpoints, files of a run, evaluation, and trained policies."""
