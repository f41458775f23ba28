"""Compiled variants of one program: the fastest and smallest, and the largest size at which they fit."""
