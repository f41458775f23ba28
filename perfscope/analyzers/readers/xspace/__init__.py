"""XSpace, the profiles of XLA (JAX, TensorFlow, PyTorch/XLA), read plane by plane."""
