"""Utilities that are independent of reinforcement learning."""
