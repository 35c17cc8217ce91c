"""What environments and models share: observation and action spaces, distributions, normalization."""
