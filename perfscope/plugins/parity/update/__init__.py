"""One step of an optimizer on both sides: the updates of weights, and the settings that explain a difference."""
