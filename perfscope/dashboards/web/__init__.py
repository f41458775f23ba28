"""The dashboard: a web application that shows runs, traces and comparisons."""
