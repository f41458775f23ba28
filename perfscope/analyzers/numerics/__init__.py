"""Numerics of a run: what narrower formats would lose of its tensors, and what was not finite."""

from perfscope.analyzers.numerics.summary import FormatRow, NumericsSummary, TensorRow, numerics_summary, split_line

__all__ = ["FormatRow", "NumericsSummary", "TensorRow", "numerics_summary", "split_line"]
