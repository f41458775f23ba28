"""Ops and kernels of a program: their time, traffic, fusion, and where they show in a recording."""

from __future__ import annotations

from perfscope.analyzers.ops.finding_spans import (
    spans_at,
    spans_of_blocks,
    spans_of_instructions,
    spans_of_ops,
    spans_of_parts,
    spans_of_peak,
    spans_of_regions,
    spans_of_slices,
    spans_of_windows,
    spans_within,
)

__all__ = [
    "spans_at",
    "spans_of_blocks",
    "spans_of_instructions",
    "spans_of_ops",
    "spans_of_parts",
    "spans_of_peak",
    "spans_of_regions",
    "spans_of_slices",
    "spans_of_windows",
    "spans_within",
]
