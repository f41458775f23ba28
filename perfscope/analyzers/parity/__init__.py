"""Compares two recordings of a model layer by layer: translated weights, errors, first divergence. numpy only."""
