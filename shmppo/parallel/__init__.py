"""Processes that work together: shared memory, signaling between learner and workers, ranks."""
