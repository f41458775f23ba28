"""Layout of a weight in another framework: transposes, merged axes, the axis of fused projections.

A layout maps the array of the *plain* side, in the form of a PyTorch state dict (linear (out, in), convolution (out,
in, *space)), to the array of the *other* side, and back. Nothing is rounded or dropped.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from perfscope.plugins.parity.document import Kind

Shape = tuple[int, ...]
FUSED = 3
"""Query, key and value."""


class Layout(Struct, frozen=True):
    """``plain.reshape(split).transpose(order).reshape(other)`` and its inverse."""

    name: str
    split: Shape
    order: tuple[int, ...]
    plain: Shape
    other: Shape

    def forth(self, array: np.ndarray) -> np.ndarray:
        """The array in the other side's layout."""
        return array.reshape(self.split).transpose(self.order).reshape(self.other)

    def back(self, array: np.ndarray) -> np.ndarray:
        """The array in the plain side's layout."""
        turned = tuple(self.split[axis] for axis in self.order)
        return array.reshape(turned).transpose(np.argsort(self.order)).reshape(self.plain)


def same(plain: Shape, other: Shape) -> Layout:
    """Whether only axes are merged."""
    return Layout("same", plain, tuple(range(len(plain))), plain, other)


def layouts(kind: Kind, plain: Shape, other: Shape, *, fused: bool = False) -> list[Layout]:
    """Layouts that map ``plain`` to ``other``, most likely first; empty if the sizes differ.

    For a square linear weight both orientations are possible: ``"in, out"`` comes first. ``fused``: the outputs are
    those of query, key and value, which the other side may keep on a separate axis.
    """
    if math.prod(plain) != math.prod(other):
        return []
    if kind == "conv" and len(plain) == len(other):
        order = (*range(2, len(plain)), 1, 0)  # (*space, in, out)
        found = [Layout("space, in, out", plain, order, plain, other)] if _taken(plain, order) == other else []
        return [*found, *([same(plain, other)] if plain == other else [])]
    if kind in ("linear", "linear_in_out", "embedding") and len(plain) == 2:
        return _matrices(kind, plain, other, fused=fused)
    if plain == other or sum(size > 1 for size in plain) <= 1:
        return [same(plain, other)]
    swapped = (*range(len(plain) - 2), len(plain) - 1, len(plain) - 2)
    if _taken(plain, swapped) == other:
        return [Layout("transposed", plain, swapped, plain, other)]
    return [same(plain, other)] if _merges(plain, other) else []


def _matrices(kind: Kind, plain: Shape, other: Shape, *, fused: bool) -> list[Layout]:
    rows, columns = plain
    turned = _divides(other, columns)
    kept = _divides(other, rows)
    found = [Layout("in, out" if kind == "linear" else "transposed", plain, (1, 0), plain, other)] if turned else []
    if kept:
        found.append(Layout("out, in" if kind == "linear" else "same", plain, (0, 1), plain, other))
    if fused and turned and len(other) >= 4 and other[-2] == FUSED and other[1] != FUSED:
        heads, width = rows // (FUSED * other[-1]), other[-1]  # (in, heads, 3, width)
        found.insert(0, Layout("in, heads, 3, width", (FUSED, heads, width, columns), (3, 1, 0, 2), plain, other))
    if kind != "linear":
        found.reverse()  # embeddings and (in, out) are unchanged
    return found


def _divides(shape: Shape, first: int) -> bool:
    """Whether leading axes have ``first`` elements, and the other axes the rest."""
    return any(math.prod(shape[:axis]) == first for axis in range(1, len(shape)))


def _merges(plain: Shape, other: Shape) -> bool:
    """Whether one shape only merges neighbouring axes of the other."""
    fine, coarse = (plain, other) if len(plain) >= len(other) else (other, plain)
    sums = {math.prod(fine[:axis]) for axis in range(len(fine) + 1)}
    return all(math.prod(coarse[:axis]) in sums for axis in range(len(coarse) + 1))


def _taken(shape: Shape, order: tuple[int, ...]) -> Shape:
    return tuple(shape[axis] for axis in order)
