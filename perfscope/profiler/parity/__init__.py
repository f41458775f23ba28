"""Runs a model in a separate process and records its weights, activations and gradients (`perfscope parity`)."""
