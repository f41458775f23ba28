"""Renderers of blocks, a format each, and what they share: how a value is shown."""
