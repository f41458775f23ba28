"""Rules on memory: what holds the peak, leaks, fragmentation, and how near the limit is."""
