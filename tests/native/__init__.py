"""The native library and its twins in Python."""
