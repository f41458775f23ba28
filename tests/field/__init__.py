"""Programs as users of public libraries write them, run and compiled unchanged."""
