"""Nsys."""
