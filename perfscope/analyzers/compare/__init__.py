"""Two versions of a program compared: statistics that give a verdict per metric, and say when they cannot."""
