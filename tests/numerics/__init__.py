"""Numerics of a run."""
