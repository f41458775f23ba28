"""Parsers of compiled XLA programs: HLO text, protocol buffers, thunks and fusion dumps."""
