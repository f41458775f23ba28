"""CUDA memory snapshots, read opcode by opcode: entries become columns as they pass, and nothing can be run."""
