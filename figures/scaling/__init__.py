"""Speed over the number of workers, for several jobs, and beside busy processes."""
