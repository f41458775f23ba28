"""Comparisons of trials: paired launches of two commits, their profiles, and the machine's noise."""
