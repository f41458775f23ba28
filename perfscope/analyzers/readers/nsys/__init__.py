"""Nsight Systems exports: what their tables and columns stand for, over all ages of the schema."""
