"""Parallel processes: shared buffers, mailboxes between learner and workers, and the process group of several ranks."""
