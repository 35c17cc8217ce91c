"""Implementations of the commands export, replay, and tune."""
