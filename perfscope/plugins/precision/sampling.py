"""Rows of the factors of a product that are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MOST_ROWS = 16
"""Rows of a factor that are measured: the error is a norm over 256 results."""
MOST_BATCHES = 4
"""Pairs of matrices of a batch among which the rows are divided."""
MOST_TERMS = 4096
"""Terms of the sum that are measured, the first ones: blocks and rows stay whole."""


def sample(take: Callable[[Any, Any], Any], factor: Any) -> Any:
    """Rows at equal distances of a factor (batch, rows, terms); ``take(array, (batches, rows, terms))``."""
    batches, rows, terms = factor.shape
    most = min(batches, MOST_BATCHES)
    picked = _even(batches, most), _even(rows, min(rows, MOST_ROWS // most)), min(terms, MOST_TERMS)
    return take(factor, picked)


def _even(size: int, count: int) -> list[int]:
    return [number * size // count for number in range(count)]
