"""Result tables of ops: one module per table, named like it."""
