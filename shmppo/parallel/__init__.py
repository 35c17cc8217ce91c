"""Parallel processes: shared buffers, signals between learner and workers, and process groups of several ranks."""
