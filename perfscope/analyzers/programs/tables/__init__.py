"""Result tables of compiled programs: one module per table, named like it."""
