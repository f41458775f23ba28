"""Values of tensors: what a process records of them, for torch and jax alike."""
