"""What only the build machine runs: set-up, packing, serving, checks. Never shipped to the page."""
