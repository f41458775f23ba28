"""How the work of rules, facts, reports and comparisons grows with the trace."""
