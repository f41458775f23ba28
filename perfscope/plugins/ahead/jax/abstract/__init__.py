"""Arrays without data, so that a JAX program can be traced without its devices."""
