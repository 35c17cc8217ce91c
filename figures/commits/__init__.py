"""Speed of this checkout relative to an older commit."""
