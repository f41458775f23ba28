"""Rules on ops and kernels: unfused, needless or repeated work, and its precision."""
