"""Environments with several agents, and self-play."""
