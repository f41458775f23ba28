"""Sweeps: one program compiled with many values of its options."""
