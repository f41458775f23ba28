"""XSpace, the profiles of XLA (JAX, TensorFlow, PyTorch/XLA), taken apart plane by plane."""
