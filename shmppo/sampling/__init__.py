"""Sampling: act in environments, collect rollouts, and run the worker processes that do this."""
