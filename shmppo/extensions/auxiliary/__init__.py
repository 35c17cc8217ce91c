"""Auxiliary losses of the actor's features (--auxiliary)."""
