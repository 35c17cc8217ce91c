"""The configuration of a run: its options, their checks, and how they are read from code, flags, and files."""
