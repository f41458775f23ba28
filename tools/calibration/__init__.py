"""Fits the curves of kernel times to public recordings and compares both."""
