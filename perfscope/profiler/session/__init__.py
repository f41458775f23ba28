"""Capture inside the user's process: steps, passes and counters."""
