"""Reports of a run: metrics files, the console display, the final summary, and trackers."""
