"""Training runs: the training loop, start and resume, and what a run writes."""
