"""Predicted and measured speedup over the number of ranks."""
