"""Torch compile."""
