"""Sets of many traces."""
