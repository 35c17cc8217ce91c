"""Speedup and efficiency over the number of workers."""
