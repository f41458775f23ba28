"""Capture: runs a program under profilers and keeps what they wrote."""
