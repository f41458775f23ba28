"""Rules on recomputation of activations: too much of it, or too little."""
