"""Tests for a machine with a GPU (``make test-gpu``), and their rehearsal on the CPU."""
