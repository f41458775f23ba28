"""Planning of PyTorch programs for absent machines."""
