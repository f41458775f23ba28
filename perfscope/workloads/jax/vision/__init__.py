"""JAX twins of `perfscope.workloads.vision`."""
