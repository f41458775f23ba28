"""Nsight Systems exports: meaning of their tables and columns, over all ages of the schema."""
