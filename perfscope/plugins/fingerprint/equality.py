"""Whether two values are equal, and how far they are apart by their sketches.

A sketch has 8 sums of the elements with random signs. The difference of two such sums has the mean square of the norm
of the difference of the tensors (N. Alon, Y. Matias and M. Szegedy, The space complexity of approximating the frequency
moments, J. Comput. Syst. Sci. 58, 1999), so that its norm is estimated from two recordings, without the tensors: from
8 buckets with a relative standard deviation of about a quarter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfscope.plugins.fingerprint.reading import ValueLine
from perfscope.plugins.fingerprint.result import Differing

FACTOR_ERROR = 1e-3
"""Largest error of a multiple: sides that divide a sum differently differ by a factor and rounding."""


def rows_alone(a: ValueLine, b: ValueLine) -> bool:
    """Whether both differ in the number of rows and in nothing else of their shapes."""
    return len(a.shape) == len(b.shape) > 0 and a.shape[0] != b.shape[0] and a.shape[1:] == b.shape[1:]


def same(a: ValueLine, b: ValueLine) -> bool:
    """Whether both are equal in dtype, shape and all bits."""
    return a.hash == b.hash and a.shape == b.shape and a.dtype == b.dtype


def same_row(a: ValueLine, b: ValueLine) -> bool:
    """Whether the first rows of both are equal in all bits."""
    return a.row == b.row and a.dtype == b.dtype


def norm(value: ValueLine) -> float | None:
    """Estimated norm; ``None`` without a sketch."""
    return None if value.sketch is None else math.sqrt(sum(part * part for part in value.sketch[2:]))


def distance(a: ValueLine, b: ValueLine) -> float | None:
    """Estimated norm of the difference; ``None`` if unknown."""
    if a.hash == b.hash and a.shape == b.shape:
        return 0.0
    if a.sketch is None or b.sketch is None or math.prod(a.shape) != math.prod(b.shape):
        return None
    return math.dist(a.sketch[2:], b.sketch[2:])


def error(a: ValueLine, b: ValueLine) -> float | None:
    """`distance` over the norm of A; ``None`` if unknown or if A is zero."""
    apart, size = distance(a, b), norm(a)
    if apart == 0.0:
        return 0.0
    return None if apart is None or not size else apart / size


def factor(a: ValueLine, b: ValueLine) -> float | None:
    """The number c with B = c A; ``None`` without such a number, or if it is 1."""
    if a.sketch is None or b.sketch is None or math.prod(a.shape) != math.prod(b.shape):
        return None
    one, other = a.sketch[2:], b.sketch[2:]
    square = _dot(one, one)
    size = math.sqrt(_dot(other, other))
    if not square or not size:
        return None
    found = _dot(one, other) / square
    rest = math.dist([found * part for part in one], other)
    return found if rest <= FACTOR_ERROR * size and abs(found - 1) > 10 * FACTOR_ERROR else None


def differing(role: str, a: ValueLine, b: ValueLine, explained: float | None = None) -> Differing:
    """The row of the document on two values."""
    far = error(a, b) if a.shape == b.shape else None
    return Differing(
        role=role,
        dtype=a.dtype if a.dtype == b.dtype else f"{a.dtype} and {b.dtype}",
        shape_a=a.shape,
        shape_b=b.shape,
        sum_a=_bounded(a, 0),
        sum_b=_bounded(b, 0),
        largest_a=_bounded(a, 1),
        largest_b=_bounded(b, 1),
        error=far if far is None or far < 1e30 else None,
        explained=explained,
        factor=factor(a, b),
    )


def _bounded(value: ValueLine, index: int) -> float | None:
    number = None if value.sketch is None else value.sketch[index]
    return None if number is None or not abs(number) < 1e30 else number


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(left * right for left, right in zip(one, other, strict=True))
