"""torch.compile's structured log: records, and the content of each kind."""
