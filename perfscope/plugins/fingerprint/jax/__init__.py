"""Fingerprints of JAX programs, by a walk of the programs that are jitted."""
