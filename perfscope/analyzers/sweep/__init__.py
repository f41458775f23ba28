"""Variants of one program that were compiled: which are quickest and leanest, and up to which size they fit."""
