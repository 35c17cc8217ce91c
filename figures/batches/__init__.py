"""Returns with batches that grow with the number of environments."""
