"""A picture of the console display."""
