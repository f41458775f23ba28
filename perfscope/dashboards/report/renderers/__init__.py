"""Renderers of blocks, one per format, and how values are shown in all of them."""
