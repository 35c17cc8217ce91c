"""What a run reports: metrics, the console, trackers."""
