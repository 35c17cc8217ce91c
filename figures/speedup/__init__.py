"""Speed-up of two workers over one process for jobs of several sizes."""
