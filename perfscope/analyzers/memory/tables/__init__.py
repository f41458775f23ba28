"""Result tables of memory: one module per table, named like it."""
