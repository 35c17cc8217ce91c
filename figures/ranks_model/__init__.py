"""Predicted and measured speed-up over the number of ranks."""
