"""Disks that are full, folders that may not be written, and processes that are killed, at each write."""
