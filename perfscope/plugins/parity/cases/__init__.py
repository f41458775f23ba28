"""Several comparisons of one pair of models, a row each: on regimes of inputs, or of several dtypes and devices."""
