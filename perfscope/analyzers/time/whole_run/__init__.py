"""Counts over all steps of a run: waiting for cores, and growth."""
