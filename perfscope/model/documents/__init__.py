"""Documents that perfscope writes and reads: run manifests, reports, comparisons and requests."""
