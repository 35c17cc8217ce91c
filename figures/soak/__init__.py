"""Memory and open file descriptors of a half-hour training run."""
