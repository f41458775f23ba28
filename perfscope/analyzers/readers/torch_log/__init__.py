"""torch.compile's structured log: records, and what each kind of them says."""
