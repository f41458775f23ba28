"""What is derived from a trace once and shared by the rules; ask with ``trace.fact(function)``."""
