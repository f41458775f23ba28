"""PRESENTATION: reports, figures and pages that show what the analysers found."""
