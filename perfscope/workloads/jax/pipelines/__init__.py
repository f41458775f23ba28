"""JAX twins of `perfscope.workloads.pipelines`."""
