"""Capture of JAX programs: profiler, compiled programs, memory and numerics."""
