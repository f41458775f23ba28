"""Structure-aware fuzzing of all readers: ``make fuzz``, ``python -m tests.fuzz --help``."""
