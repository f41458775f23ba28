"""Analysis: traces in, findings out. No framework is imported here, so it runs on a laptop."""
