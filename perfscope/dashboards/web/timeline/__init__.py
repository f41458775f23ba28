"""The timeline: a trace as lanes of events, an index that answers for any piece of it at once, and its tiles."""
