"""Verbs of the run store."""
