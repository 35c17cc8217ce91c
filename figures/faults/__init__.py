"""Disturbed runs and random configurations train to one hash, and a long run does not grow."""
