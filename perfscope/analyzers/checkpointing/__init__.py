"""Advice: what another plan of the same program would need and cost, predicted before it is written."""
