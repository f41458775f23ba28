"""Runs a model in a process of its own and records its weights, activations and gradients (`perfscope parity`)."""
