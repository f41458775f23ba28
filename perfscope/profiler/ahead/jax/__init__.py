"""Compilation of JAX programs for machines that are not present."""
