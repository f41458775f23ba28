"""What is kept of runs after their folders are gone: numbers, findings, baselines; in a file or on a server."""
