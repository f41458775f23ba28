"""Rules on numerics."""
