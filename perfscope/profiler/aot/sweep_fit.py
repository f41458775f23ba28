"""``--fit NAME=RANGE``: which sizes to compile to find the largest that fits, by halving what is left.

Each answer halves the sizes between the largest that fits and the smallest that does not, so a thousand sizes take ten
compilations. It supposes that what is above a size that does not fit does not fit either; nobody promises that, since
compilers recompute more where memory is short, so what was not compiled is not claimed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfscope.profiler.aot.sweep_axes import MOST_VARIANTS, Axis, parse_axis
from perfscope.profiler.errors import AskedWronglyError

MOST_SIZES = 4_096
"""Of a range that is searched: twelve compilations."""


class Bisection:
    """Of ``count`` sizes, in rising order. ``next()`` says which to try, ``tell()`` what came of it."""

    def __init__(self, count: int) -> None:
        """Nothing is known yet."""
        self._fits, self._refused = -1, count
        self._given_up = False

    def next(self) -> int | None:
        """Place of the size to try now; ``None``: it is known, or a size could not be judged."""
        if self._given_up or self._refused - self._fits < 2:
            return None
        return (self._fits + self._refused) // 2

    def tell(self, place: int, fits: bool | None) -> None:
        """Whether the size at a place fits; ``None``: it is not known, and the search ends."""
        if fits is None:
            self._given_up = True
        elif fits:
            self._fits = max(self._fits, place)
        else:
            self._refused = min(self._refused, place)


def most_tries(count: int) -> int:
    """The most sizes of ``count`` that are compiled."""
    return math.ceil(math.log2(count + 1))


def fit_axis(text: str, others: Sequence[Axis]) -> Axis:
    """The axis that is searched, its sizes rising; ``others`` are swept beside it. ``AskedWronglyError`` in a line."""
    axis = parse_axis(text, option="--fit", most=MOST_SIZES)
    if axis.kind == "choice" or not axis.numeric or axis.name in ("target", "memory"):
        raise AskedWronglyError(f"--fit {axis.name}: only whole numbers can be searched; write e.g. seq=1k..128k/1k")
    if any(one.name == axis.name for one in others):
        raise AskedWronglyError(f"--fit {axis.name}: it is swept, too")
    lines = math.prod(len(one.values) for one in others)
    if lines * most_tries(len(axis.values)) > MOST_VARIANTS:
        tries = most_tries(len(axis.values))
        raise AskedWronglyError(
            f"--fit {axis.name}: {lines:,} variants with up to {tries} sizes each; it may be {MOST_VARIANTS} in all"
        )
    return Axis(name=axis.name, values=tuple(sorted(axis.values, key=int)), kind="size")
