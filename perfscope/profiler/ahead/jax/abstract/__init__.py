"""Abstract."""
