"""Presentation: reports, figures and pages of what the analyzers computed."""
