"""Planning and compilation of PyTorch programs for machines that are not present."""
