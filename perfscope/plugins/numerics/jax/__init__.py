"""Numerics of the arrays of a JAX program (`perfscope run --numerics`)."""
