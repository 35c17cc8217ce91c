"""Rollouts: acting in environments, and the worker processes that do it."""
