"""The page of jobs: one job over time, many jobs in a table, and nodes that are slow in several of them."""
