"""Rules on torch.compile and on jax's compilation: breaks, recompilations, and their time."""
