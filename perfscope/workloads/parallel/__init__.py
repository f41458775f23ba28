"""Training of one model in several processes: its weights, the features of its layers, or its layers are divided."""
