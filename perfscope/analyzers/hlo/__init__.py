"""Compiled XLA programs: module, computations, instructions, shapes, and what each instruction costs."""
