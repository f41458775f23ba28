"""What runs on a machine with a GPU (``make test-gpu``), and its rehearsal on the CPU."""
