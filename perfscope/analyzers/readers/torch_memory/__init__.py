"""CUDA memory snapshots, read opcode by opcode: entries become columns at once, and nothing can be run."""
