"""Capture of PyTorch programs: profiler, op graph, memory, compile logs and numerics."""
