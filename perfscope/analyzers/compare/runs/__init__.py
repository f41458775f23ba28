"""Comparisons of recordings: step times, idle causes, ops and findings of two runs or sets of runs."""
