"""Figures of training runs and benchmarks, drawn with matplotlib."""
