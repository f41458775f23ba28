"""The timeline: a trace as lanes of events, an index with fast access to any section, and its tiles."""
