"""Code shared by compilation for absent machines with JAX and with PyTorch."""
