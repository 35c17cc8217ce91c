"""The files of a run: its directory, checkpoints, and metrics."""
