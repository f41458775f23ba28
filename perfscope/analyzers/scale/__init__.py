"""Sets of many traces: each is read, judged by itself and cut down elsewhere; only the digests are held together."""
