"""Tests of the statistics of comparisons."""
