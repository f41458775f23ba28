"""Modelled cost of HLO programs."""
