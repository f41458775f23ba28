"""Xla model."""
