"""XLA: stages of a JAX program from its dumps, and what happened to its lines."""
