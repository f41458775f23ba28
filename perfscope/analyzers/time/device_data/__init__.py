"""Properties of the rows of device work: the step that launched them, and whether they are plausible."""
