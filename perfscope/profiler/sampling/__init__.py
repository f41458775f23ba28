"""Python stacks of the program's threads and of its worker processes, sampled while its steps run."""
