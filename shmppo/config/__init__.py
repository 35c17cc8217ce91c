"""The options of a run, and where they come from: code, command line, files."""
