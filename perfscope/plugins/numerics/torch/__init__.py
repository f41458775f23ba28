"""Numerics of the tensors of a program (`perfscope run --numerics`)."""
