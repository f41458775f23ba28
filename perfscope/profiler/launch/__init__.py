"""Start of the user's program under capture, and the record of its run."""
