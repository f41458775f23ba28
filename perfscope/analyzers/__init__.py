"""Judgement: traces in, findings out. No framework is imported here; it runs on a laptop."""
