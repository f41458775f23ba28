"""Recomputation policies of a JAX program, changed in its jaxpr."""
