"""Inputs on which two implementations of one model may differ, made from inputs that the model has."""

from __future__ import annotations

from perfscope.plugins.parity.inputs.regimes import EXAMPLE, REGIMES, derived, regime_names

__all__ = ["EXAMPLE", "REGIMES", "derived", "regime_names"]
