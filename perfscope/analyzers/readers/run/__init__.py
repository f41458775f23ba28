"""Reader of a directory that `perfscope run` wrote: one trace per process."""
