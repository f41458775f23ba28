"""Trials: launches of two commits, or of one program with and without a change, in alternating pairs."""
