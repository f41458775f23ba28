"""CUDA memory snapshots: every opcode is checked, nothing can be run, and histories become columns."""
