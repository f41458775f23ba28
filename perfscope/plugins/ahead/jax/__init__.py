"""Compilation of JAX programs for absent machines."""
