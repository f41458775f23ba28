"""torch.compile: stages of its graphs from the structured log, and what happened to their lines."""
