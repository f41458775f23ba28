"""Readers of compiled XLA programs without a recording: text and protocol buffers."""
