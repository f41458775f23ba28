"""Capture with NVIDIA Nsight Systems: the command around the program, and marks of its steps."""
