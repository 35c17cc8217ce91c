"""Returns beside published ones."""
