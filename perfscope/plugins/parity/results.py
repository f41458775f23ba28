"""Results of ops of two sides: which of them are the same value, whatever its layout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from perfscope.model.documents.trail import Op
from perfscope.plugins.parity.document import Arrays, Recording
from perfscope.plugins.parity.errors import relative_error
from perfscope.plugins.parity.matching import alignment

MOST_EXACT = 1e-3
"""Largest expected error at which norms and sums distinguish ops whose values were not kept. With 16-bit values a
rotated or permuted array has the same norm and nearly the same sums as the right one."""
MOST_COMMON = 0.05
"""Relative difference up to which two results count as the same value, whatever rounding allows."""
MOST_LINES = 8


class Result(Struct, frozen=True):
    """An op with its result. ``value``: ``None`` if the recording did not keep it."""

    op: Op
    value: np.ndarray | None


def between(recording: Recording, arrays: Arrays, last: int, layer: int) -> list[Result]:
    """Results of ops after the layer ``last`` was complete, up to ``layer``."""
    return [
        Result(op, arrays.get(f"op:{number}")) for number, op in enumerate(recording.ops) if last < op.layers <= layer
    ]


def telling(results: Sequence[Result], expected: float) -> bool:
    """Whether ops can be distinguished: their values were kept, or norms and sums are exact enough."""
    return expected <= MOST_EXACT or all(result.value is not None for result in results)


def same_result(a: Result, b: Result, expected: float) -> bool:
    """Whether both are one value within ``expected``, maybe with axes in another order.

    Without values the numbers decide that no layout changes, where ``expected`` is small enough for them.
    """
    enough = min(expected, MOST_COMMON)
    if not _same_numbers(a.op, b.op, enough):
        return False
    if a.value is None or b.value is None:
        return expected <= MOST_EXACT
    for one, other in ((a.value, b.value), (b.value, a.value)):
        error = relative_error(alignment(one, other, enough)(one), other)
        if error is not None and error <= enough:
            return True
    return False


def last_common(a: Sequence[Result], b: Sequence[Result], expected: float) -> tuple[int, int] | None:
    """Indices of the last result of ``b`` that ``a`` also has: in ``a``, and in ``b``."""
    for here in reversed(range(len(b))):
        for there in reversed(range(len(a))):
            if same_result(a[there], b[here], expected):
                return there, here
    return None


def lines(results: Sequence[Result], others: Sequence[Result], expected: float | None) -> tuple[str, ...]:
    """Lines of ``results`` in order, without those whose results are all among ``others``; ``None``: all lines.

    The last result is the layer itself and is left out.
    """
    found = {}
    for result in results[:-1]:
        op = result.op
        lone = expected is None or not any(same_result(result, other, expected) for other in others)
        if op.line and op.size > 1 and lone:
            found[op.line] = True
    return tuple(found)[:MOST_LINES]


def place(results: Sequence[Result]) -> str:
    """``'mul at model.py:3'`` for the first of the results; ``''`` without results."""
    op = results[0].op if results else None
    return "" if op is None else f"{op.name} at {op.line}" if op.line else op.name


def _same_numbers(a: Op, b: Op, enough: float) -> bool:
    """Whether numbers agree that are independent of the layout."""
    if a.size != b.size or a.size < 2:
        return False
    if a.norm is None or b.norm is None or a.absolute is None or b.absolute is None:
        return False
    if a.total is None or b.total is None or not a.norm or not a.absolute:
        return False
    near = abs(a.norm - b.norm) <= enough * a.norm and abs(a.absolute - b.absolute) <= enough * a.absolute
    return near and abs(a.total - b.total) <= enough * max(a.absolute, math.sqrt(a.size) * a.norm)
