"""Arrays of a program that are nearly all zero by construction: one-hot matrices and what is made of them.

``jax.nn.one_hot`` compares positions with an index, ``iota == index``: along the compared axis at most one element is
not zero. Products, sums over few terms and views of such an array keep a bound like it. What is known of an array here
holds whatever its inputs are; an array without a known bound may still be sparse.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Axes = frozenset[int]

NO_AXES: Axes = frozenset()

_MOST_BOUNDS = 8
"""Kept of an array: products of arrays with many axes multiply them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """What is known of an array for any input. The default knows nothing."""

    bounds: Mapping[Axes, int] = field(default_factory=dict)
    """Axes -> most elements that are not zero over these axes together, for each position on the others."""
    constant: Axes = NO_AXES
    """Axes along which all elements are the same."""
    distinct: Axes = NO_AXES
    """Axes along which all elements differ (positions)."""
    is_zero: bool = False
    """All elements are zero."""

    def density(self, dims: Sequence[int]) -> float:
        """Most of the elements that are not zero, as a share of all; 1 where nothing is known."""
        if self.is_zero:
            return 0.0
        return min((most / _size(axes, dims) for axes, most in self.bounds.items()), default=1.0)

    def at(self, axes: Axes) -> int | None:
        """The bound over exactly these axes."""
        return 0 if self.is_zero else self.bounds.get(axes)


UNKNOWN = Pattern()


def _size(axes: Iterable[int], dims: Sequence[int]) -> int:
    return math.prod(dims[axis] for axis in axes)


def pattern(
    bounds: Mapping[Axes, int], dims: Sequence[int], constant: Axes = NO_AXES, distinct: Axes = NO_AXES
) -> Pattern:
    """A pattern of an array of these dimensions, without bounds that say nothing; the tightest of too many."""
    told = {axes: most for axes, most in bounds.items() if most < _size(axes, dims)}
    if len(told) > _MOST_BOUNDS:
        tightest = sorted(told, key=lambda axes: (told[axes] / _size(axes, dims), len(axes), sorted(axes)))
        told = {axes: told[axes] for axes in tightest[:_MOST_BOUNDS]}
    return Pattern(bounds=told, constant=constant, distinct=distinct)


def same_values(patterns: Sequence[Pattern]) -> Pattern:
    """What holds of an array that is one of several: of a loop's state what goes in, or what an iteration returns."""
    first, *others = patterns
    for other in others:
        if first == other:
            continue
        bounds = {}
        for axes in first.bounds.keys() | other.bounds.keys():
            mine, theirs = first.at(axes), other.at(axes)
            if mine is not None and theirs is not None:
                bounds[axes] = max(mine, theirs)
        first = Pattern(
            bounds=bounds,
            constant=first.constant & other.constant,
            distinct=first.distinct & other.distinct,
            is_zero=first.is_zero and other.is_zero,
        )
    return first


def positions_equal(left: Pattern, right: Pattern, dims: Sequence[int]) -> Pattern:
    """``left == right``: where one counts along an axis and the other stays the same, they meet once at most."""
    axes = (left.distinct & right.constant) | (right.distinct & left.constant)
    return pattern({frozenset({axis}): 1 for axis in axes}, dims, left.constant & right.constant)


def product(left: Pattern, right: Pattern, dims: Sequence[int]) -> Pattern:
    """``left * right``: zero where either is."""
    if left.is_zero or right.is_zero:
        return Pattern(is_zero=True, constant=frozenset(range(len(dims))))
    bounds: dict[Axes, int] = {}

    def tell(axes: Axes, most: int) -> None:
        bounds[axes] = min(most, bounds.get(axes, most))

    for one in (left, right):
        for axes, most in one.bounds.items():
            tell(axes, most)
    for mine, most in left.bounds.items():
        for theirs, more in right.bounds.items():
            # where the one does not depend on the other's axes, the positions of both combine
            if not mine & theirs and (theirs <= left.constant or mine <= right.constant):
                tell(mine | theirs, most * more)
    return pattern(bounds, dims, left.constant & right.constant)


def total(left: Pattern, right: Pattern, dims: Sequence[int]) -> Pattern:
    """``left + right``, or another operation that is zero where both are. Positions stay positions when shifted."""
    if left.is_zero or right.is_zero:
        other = right if left.is_zero else left
        return Pattern(bounds=other.bounds, constant=left.constant & right.constant, is_zero=other.is_zero)
    bounds = {axes: most + right.bounds[axes] for axes, most in left.bounds.items() if axes in right.bounds}
    return pattern(bounds, dims, left.constant & right.constant)


def shifted(left: Pattern, right: Pattern) -> Axes:
    """Axes along which a sum or difference of two arrays still counts positions."""
    return (left.distinct & right.constant) | (right.distinct & left.constant)


def summed(one: Pattern, dims: Sequence[int], axes: Iterable[int]) -> Pattern:
    """The sum over axes: as many positions as its terms have together. The other axes are numbered anew."""
    gone = frozenset(axes)
    kept = [axis for axis in range(len(dims)) if axis not in gone]
    if one.is_zero:
        return Pattern(is_zero=True, constant=frozenset(range(len(kept))))
    number = {axis: index for index, axis in enumerate(kept)}
    bounds: dict[Axes, int] = {}
    for mine, most in one.bounds.items():
        if mine <= gone:
            continue
        left = frozenset(number[axis] for axis in mine - gone)
        most *= _size(gone - mine, dims)
        bounds[left] = min(most, bounds.get(left, most))
    return pattern(
        bounds, [dims[axis] for axis in kept], frozenset(number[axis] for axis in kept if axis in one.constant)
    )


def renumbered(one: Pattern, axes: Sequence[int], more: Axes = NO_AXES) -> Pattern:
    """The same with axis ``i`` called ``axes[i]``, the same values along the axes ``more``."""

    def named(group: Axes) -> Axes:
        return frozenset(axes[axis] for axis in group)

    return Pattern(
        bounds={named(group): most for group, most in one.bounds.items()},
        constant=named(one.constant) | more,
        distinct=named(one.distinct),
        is_zero=one.is_zero,
    )


def regrouped(one: Pattern, dims: Sequence[int], into: Sequence[int]) -> Pattern:
    """The same elements in the same order as an array of other dimensions."""
    if one.is_zero:
        return Pattern(is_zero=True, constant=frozenset(range(len(into))))
    groups = _groups(dims, into)
    ones = frozenset(axis for axis, size in enumerate(into) if size == 1)
    bounds: dict[Axes, int] = {}
    for axes, most in one.bounds.items():
        left: set[int] = set()
        for mine, theirs in groups:
            touched = axes & mine
            if touched:
                # part of a group that became one axis: over all of the group
                most *= _size(mine - axes, dims)
                left |= theirs
        left -= ones
        if left:
            bounds[frozenset(left)] = min(most, bounds.get(frozenset(left), most))
    constant, distinct = set(ones), set[int]()
    for mine, theirs in groups:
        real = {axis for axis in mine if dims[axis] > 1}
        if real <= one.constant:
            constant |= theirs
        if len(real) == 1 and real <= one.distinct:
            distinct |= theirs - ones
    return pattern(bounds, into, frozenset(constant), frozenset(distinct))


def _groups(dims: Sequence[int], into: Sequence[int]) -> list[tuple[Axes, Axes]]:
    """The smallest groups of axes next to one another that hold the same elements before and after."""
    if math.prod(dims) != math.prod(into) or not math.prod(dims):
        return []
    before = [axis for axis, size in enumerate(dims) if size > 1]
    after = [axis for axis, size in enumerate(into) if size > 1]
    found = []
    i = j = 0
    while i < len(before):
        mine, theirs = [before[i]], [after[j]]
        while _size(mine, dims) != _size(theirs, into):
            if _size(mine, dims) < _size(theirs, into):
                mine.append(before[i + len(mine)])
            else:
                theirs.append(after[j + len(theirs)])
        i, j = i + len(mine), j + len(theirs)
        found.append((frozenset(mine), frozenset(theirs)))
    return found
