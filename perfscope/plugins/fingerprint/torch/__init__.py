"""Fingerprints of PyTorch programs, by a dispatch mode and hooks."""
