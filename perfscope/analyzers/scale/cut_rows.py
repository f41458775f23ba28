"""Rows of a table of which others are left out: where they are now, and what points at them."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfscope.analyzers.facts.intervals import Int64
from perfscope.analyzers.trace import MISSING, Rows


def places(size: int, chosen: Int64) -> Int64:
    """Per row of a table of ``size``: its place among the chosen ones, ``MISSING`` for the others."""
    at = np.full(size, MISSING, np.int64)
    at[chosen] = np.arange(len(chosen))
    return at


def moved_to(references: np.ndarray, at: Int64) -> np.ndarray:
    """Rows that a column points at, where they are now; ``at`` as ``places`` gives it."""
    moved = np.full(len(references), MISSING, np.int64)
    known = references != MISSING
    moved[known] = at[references[known]]
    return moved


def with_columns(rows: Rows, columns: dict[str, Any]) -> Rows:
    """The rows with other values in some columns; a scalar is for all of them."""
    changed = {name: np.broadcast_to(values, len(rows)) for name, values in columns.items()}
    return Rows(rows.table, {**rows, **changed})
