"""Op graph."""
