"""Benchmarks: they time the trainer itself."""
