"""The dashboard in a real browser: every page, its console, its requests, its keys."""
