"""Speed-up and efficiency over the number of workers."""
