"""Estimators, intervals and verdicts for two samples of step times, independent or paired."""
