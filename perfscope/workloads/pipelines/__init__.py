"""Programs about what is around the step: decoding, reading, saving, evaluating, logging."""
