"""Environments with several agents, and self-play: opponents with earlier weights play some of the agents."""
