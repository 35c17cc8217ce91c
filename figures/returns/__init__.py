"""Returns of the reference tasks."""
