"""Programs of pictures."""
