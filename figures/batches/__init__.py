"""Returns with batches that grow with the number of environments, and minibatches that do or do not."""
