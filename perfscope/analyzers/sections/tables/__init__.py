"""Result tables of several capabilities together, one module each."""
