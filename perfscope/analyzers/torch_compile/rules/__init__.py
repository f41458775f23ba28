"""Rules about torch.compile and about compilation in JAX."""
