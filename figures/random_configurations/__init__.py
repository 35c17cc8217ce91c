"""Random configurations are refused in one sentence, or train with the same weights for any number of workers."""
