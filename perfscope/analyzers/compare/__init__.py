"""Comparisons of two versions of a program: statistics with a verdict per metric, or why there is none."""
