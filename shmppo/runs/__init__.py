"""A training run from start to end, and what is kept of it."""
