"""The store of runs, on both databases."""
