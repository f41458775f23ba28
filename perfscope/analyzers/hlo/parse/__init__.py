"""Parsers of HLO text and protos, and of XLA's dumps next to them."""
