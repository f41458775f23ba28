"""What a run of ours counted in all of its steps: waiting for cores, and growth."""
