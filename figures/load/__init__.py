"""Speed beside other busy processes."""
