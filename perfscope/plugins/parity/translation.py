"""Translates the weights of one model into those of another: by name, shape and order, or by the user's mapping.

One side is *plain*: PyTorch's, or A if both have one framework. A weight of the other side is one of the `compositions`
of plain weights.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np
from msgspec import Struct, field

from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.parity.compositions import Entry, Unit, compositions
from perfscope.plugins.parity.document import Arrays, Mapping, Weight
from perfscope.plugins.parity.heads import IN_ORDER, from_options
from perfscope.plugins.parity.layouts import Layout, Shape, layouts, same
from perfscope.plugins.parity.names import Name, likeness, parse_name

MOST_NAMED = 4
"""Most weights named in an error."""
By = Literal["name", "order", "option"]


class MisfitError(DataError):
    """Weights of either side without a counterpart. The message names the first ones."""

    def __init__(self, line: str, a: Sequence[Weight], b: Sequence[Weight]) -> None:
        super().__init__(line)
        self.a, self.b = tuple(a), tuple(b)


class Read(Protocol):
    """Reads the array of a name."""

    def __getitem__(self, name: str, /) -> np.ndarray:
        """The array; ``KeyError`` for a name without an array."""


class Link(Struct, frozen=True):
    """A weight of the other side, and its composition."""

    other: str
    entry: Entry
    layout: Layout
    by: By
    axes: tuple[int, ...] = ()
    """Axes of the other side's array that its stack has."""

    def rows(self, array: np.ndarray) -> np.ndarray:
        """The array as layers, one after the other, without a copy where that is possible."""
        if not self.axes:
            return array[None]
        moved = np.moveaxis(array, self.axes, range(len(self.axes)))
        return moved if len(self.axes) == 1 else moved.reshape(len(self.entry.stack), *moved.shape[len(self.axes) :])

    def empty(self, dtype: np.dtype[np.generic]) -> np.ndarray:
        """An array of the other side's shape, to be filled by way of `rows`."""
        shape = list(self.layout.other)
        for axis, length in sorted(zip(self.axes, self.entry.stacked, strict=True)):
            shape.insert(axis, length)
        return np.empty(shape, dtype)


class Translation(Struct):
    """All links of two models. ``from_plain``: A is the plain side."""

    links: tuple[Link, ...]
    from_plain: bool
    plain: dict[str, Weight] = field(default_factory=dict)
    _links: dict[str, Link] | None = None
    _places: dict[str, list[tuple[Link, int, int, Unit]]] | None = None

    def to_b(self, arrays: Arrays) -> Arrays:
        """B's arrays (weights, or gradients) from A's. ``DataError`` where tied weights of B differ in A."""
        return self._to_other(arrays) if self.from_plain else self._to_plain(arrays)

    def to_a(self, arrays: Arrays, *, add: bool = False) -> Arrays:
        """A's arrays from B's. ``add``: those of tied weights add up, as gradients do."""
        return self._to_plain(arrays, add=add) if self.from_plain else self._to_other(arrays)

    def tied_in_a(self) -> frozenset[str]:
        """Weights of A that are one weight in B, which has one gradient for all of them."""
        counts = Counter(unit for link in self.links for unit in link.entry.units())
        tied = (link.other for link in self.links if any(counts[unit] > 1 for unit in link.entry.units()))
        return frozenset() if self.from_plain else frozenset(tied)

    def mappings(self) -> tuple[Mapping, ...]:
        """The mapping, as names."""
        return tuple(
            Mapping(a=link.entry.title, b=link.other, layout=link.layout.name, by=link.by)
            if self.from_plain
            else Mapping(a=link.other, b=link.entry.title, layout=link.layout.name, by=link.by)
            for link in self.links
        )

    def canonical(self, *, of_a: bool) -> dict[str, frozenset[str]]:
        """Weight of a side (``NAME``, or ``NAME[i]`` in stacks) -> plain weights that it represents."""
        if of_a == self.from_plain:
            return {name: frozenset({name}) for name in self.plain}
        known: dict[str, frozenset[str]] = {}
        for link in self.links:
            rows = [frozenset(unit.weight for unit in row) for row in link.entry.stack]
            known[link.other] = frozenset().union(*rows)
            if link.entry.stacked:
                layers = link.entry.stacked[0]
                each = len(rows) // layers
                for index in range(layers):
                    known[f"{link.other}[{index}]"] = frozenset().union(*rows[index * each : (index + 1) * each])
        return known

    def shapes(self) -> dict[str, Shape]:
        """Shapes of B's weights."""
        if self.from_plain:
            return {link.other: link.empty(np.dtype(np.uint8)).shape for link in self.links}
        return {name: self.plain[name].shape for name in self._pieces()}

    def sources(self, name: str) -> tuple[str, ...]:
        """Weights of A of which B's weight ``name`` is made."""
        if self.from_plain:
            link = self._by_other()[name]
            return tuple(dict.fromkeys(unit.weight for unit in link.entry.units()))
        return tuple(dict.fromkeys(link.other for link, _, _, _ in self._pieces()[name]))

    def made(self, name: str, arrays: Read, *, add: bool = False) -> np.ndarray:
        """B's weight ``name`` from the arrays of A, of which only those that it needs are read.

        ``DataError`` where it is tied and A has several values for it, which add up with ``add``.
        """
        return self._other(self._by_other()[name], arrays) if self.from_plain else self._plain(name, arrays, add=add)

    def back(self, name: str, arrays: Read) -> np.ndarray:
        """A's weight ``name`` from the arrays of B. ``DataError`` where it is tied and B has several values for it."""
        return self._plain(name, arrays) if self.from_plain else self._other(self._by_other()[name], arrays)

    def counterparts(self, name: str) -> tuple[str, ...]:
        """Weights of B in which A's weight ``name`` is; empty for a buffer of A alone."""
        if self.from_plain:
            return tuple(dict.fromkeys(link.other for link, _, _, _ in self._pieces().get(name, ())))
        link = self._by_other().get(name)
        return () if link is None else tuple(dict.fromkeys(unit.weight for unit in link.entry.units()))

    def _by_other(self) -> dict[str, Link]:
        if self._links is None:
            self._links = {link.other: link for link in self.links}
        return self._links

    def _pieces(self) -> dict[str, list[tuple[Link, int, int, Unit]]]:
        """Plain weight -> (link, row of its stack, first output in the row, unit) of each of its pieces."""
        if self._places is None:
            self._places = {}
            for link in self.links:
                for number, row in enumerate(link.entry.stack):
                    begin = 0
                    for unit in row:
                        self._places.setdefault(unit.weight, []).append((link, number, begin, unit))
                        begin += self._size(unit, link.entry.outputs)
        return self._places

    def _size(self, unit: Unit, axis: int) -> int:
        if unit.begin is not None and unit.end is not None:
            return unit.end - unit.begin
        shape = self.plain[unit.weight].shape
        return shape[axis] if shape else 1

    def _to_other(self, arrays: Arrays) -> Arrays:
        return {link.other: self._other(link, arrays) for link in self.links}

    def _to_plain(self, arrays: Arrays, *, add: bool = False) -> Arrays:
        return {name: self._plain(name, arrays, add=add) for name in self._pieces()}

    def _other(self, link: Link, arrays: Read) -> np.ndarray:
        made: np.ndarray | None = None
        for number, row in enumerate(link.entry.stack):
            pieces = [_range(arrays[unit.weight], unit, link.entry.outputs) for unit in row]
            whole = link.layout.forth(np.concatenate(pieces, link.entry.outputs) if len(pieces) > 1 else pieces[0])
            if not link.axes:
                return whole
            made = link.empty(whole.dtype) if made is None else made
            position = np.unravel_index(number, link.entry.stacked)
            np.moveaxis(made, link.axes, range(len(link.axes)))[position] = whole
        if made is None:
            raise DataError(f"{link.other}: made of no weights")
        return made

    def _plain(self, name: str, arrays: Read, *, add: bool = False) -> np.ndarray:
        made: np.ndarray | None = None
        done: set[tuple[int | None, int | None]] = set()
        for link, number, begin, unit in self._pieces()[name]:
            axis = link.entry.outputs
            whole = link.layout.back(link.rows(arrays[link.other])[number])
            piece = whole
            if len(link.entry.stack[number]) > 1:
                piece = np.take(whole, range(begin, begin + self._size(unit, axis)), axis)
            if made is None:
                made = np.empty(self.plain[name].shape, piece.dtype)
            target = _range(made, unit, axis)
            if (unit.begin, unit.end) not in done:
                target[...] = piece
            elif add:
                target += piece
            elif not np.array_equal(target, piece):
                raise DataError(f"{name} is tied: {link.other} has other values than another weight that it represents")
            done.add((unit.begin, unit.end))
        if made is None:
            raise DataError(f"{name}: made of no weights")
        return made


def _range(array: np.ndarray, unit: Unit, axis: int) -> np.ndarray:
    """The unit's range of outputs, a view."""
    if unit.begin is None:
        return array
    return array[(slice(None),) * axis + (slice(unit.begin, unit.end),)]


def translate(
    a: Sequence[Weight],
    b: Sequence[Weight],
    *,
    a_is_torch: bool,
    b_is_torch: bool,
    options: Sequence[str] = (),
    layouts_of: dict[str, str] | None = None,
) -> Translation:
    """Map A's weights to B's. ``options``: ``A_NAME=B_NAME`` each; ``layouts_of``: layout by that text.

    `MisfitError` with one line if a weight of either side has no counterpart, ``UsageError`` for an invalid option.
    """
    from_plain = a_is_torch or not b_is_torch
    plain, other = (a, b) if from_plain else (b, a)
    plain, other = from_options(plain, options, plain=True), from_options(other, options, plain=False)
    named = _named(options, a, b, from_plain=from_plain)
    wanted = {weight: (layouts_of or {}).get(option, "") for weight, (_, option) in named.items()}
    left = {weight.name: weight for weight in other}
    links: list[Link] = []
    used: set[tuple[Unit, str]] = set()

    def keys(entry: Entry) -> Iterator[tuple[Unit, str]]:
        return ((unit, entry.title if entry.alias else "") for unit in entry.units())

    entries = compositions(plain, other)
    orientation = "out, in" if a_is_torch and b_is_torch else _orientation(entries, other)
    fit = Fit(orientation, _stack_axis(entries, other), wanted)
    steps: tuple[By, ...] = ("option", "name", "order")
    for by in steps:
        free = [entry for entry in entries if by != "order" or used.isdisjoint(keys(entry))]
        for weight, entry, layout, axes in _candidates(free, list(left.values()), named, fit, by):
            if weight.name in left and (by == "option" or used.isdisjoint(keys(entry))):
                links.append(Link(weight.name, entry, layout, by, axes))
                used.update(keys(entry))
                del left[weight.name]
    translation = Translation(tuple(links), from_plain, {weight.name: weight for weight in plain})
    _complete(translation, left, plain, other)
    return translation


class Fit(Struct, frozen=True):
    """How the other side's weights are laid out."""

    orientation: str
    stack_axis: int
    wanted: dict[str, str]
    """Weight of the other side -> name of the layout that it must have."""


Candidate = tuple[Weight, Entry, Layout, tuple[int, ...]]
LEAST = 0.5
"""Likeness from which names may mean the same."""


def _candidates(
    entries: Sequence[Entry], others: Sequence[Weight], named: dict[str, tuple[str, str]], fit: Fit, by: By
) -> list[Candidate]:
    """Possible links, most likely first; equally likely ones in the order of both models."""
    found: list[tuple[tuple[float, int, int, int], Candidate]] = []
    by_indices: dict[tuple[int, ...], list[Entry]] = defaultdict(list)
    for entry in entries:
        by_indices[entry.name.indices].append(entry)
    for order, weight in enumerate(others):
        name = parse_name(weight.name)
        given = named.get(weight.name)
        if (given is not None) != (by == "option"):
            continue
        for entry in entries if by != "name" else by_indices[name.indices]:
            score = _likeness(entry.name.words, entry.name.role, name.words, name.role) if by != "option" else 0.0
            if (given is not None and given[0] != entry.title) or (by == "name" and score < LEAST):
                continue
            laid = _layout(entry, weight, fit)
            if laid is not None:
                apart = abs(entry.order - order) if by == "order" else 0
                found.append(((-score, apart, entry.order, order), (weight, entry, *laid)))
    return [candidate for _, candidate in sorted(found, key=lambda pair: pair[0])]


@lru_cache(maxsize=1 << 18)
def _likeness(words: tuple[str, ...], role: str, others: tuple[str, ...], other_role: str) -> float:
    """`likeness` of names by what it depends on: models have many weights and few words."""
    return likeness(Name(words, role, ()), Name(others, other_role, ()))


def _layout(entry: Entry, weight: Weight, fit: Fit) -> tuple[Layout, tuple[int, ...]] | None:
    """Layout of the entry in a weight of the other side, and the axes of its stack; ``None`` if it does not fit."""
    for axes in _stack_axes(entry, fit.stack_axis):
        if len(weight.shape) <= max(axes, default=-1) or tuple(weight.shape[axis] for axis in axes) != entry.stacked:
            continue
        shape = tuple(size for axis, size in enumerate(weight.shape) if axis not in axes)
        layout = _layout_of(entry, weight, shape, fit)
        if layout is not None:
            return layout, axes
    return None


def _stack_axes(entry: Entry, preferred: int) -> tuple[tuple[int, ...], ...]:
    """Axes that a stack may have in the other side's array, the usual ones of that side first."""
    if not entry.stacked:
        return ((),)
    possible: tuple[tuple[int, ...], ...] = ((0,), (1,)) if len(entry.stacked) == 1 else ((0, 1), (1, 0))
    return possible[::-1] if preferred == 1 else possible


def _layout_of(entry: Entry, weight: Weight, shape: Shape, fit: Fit) -> Layout | None:
    whole = len(entry.stack[0]) == 1 and entry.stack[0][0].begin is None  # then in the order that it has
    same_order = weight.heads == entry.heads or (weight.heads in IN_ORDER and entry.heads == "")
    if not same_order and not (weight.heads == "" and whole):
        return None
    if weight.kind and {weight.kind, entry.kind} != {"linear", "linear_in_out"}:  # both are PyTorch's
        return same(entry.shape, shape) if entry.shape == shape else None
    possible = layouts(
        entry.kind,
        entry.shape,
        shape,
        fused=entry.heads in IN_ORDER and (len(entry.stack[0]) > 1 or "qkv" in entry.name.words),
    )
    names = [layout.name for layout in possible]
    if wanted := fit.wanted.get(weight.name):
        return next((layout for layout in possible if layout.name == wanted), None)
    if names == ["in, out", "out, in"] and (fit.orientation == "out, in" or weight.name.endswith("weight")):
        return possible[1]
    if names == ["same", "transposed"] and entry.kind == "linear_in_out" and fit.orientation == "out, in":
        return possible[1]
    return possible[0] if possible else None


def _stack_axis(entries: Sequence[Entry], others: Sequence[Weight]) -> int:
    """Axis of the other side's layers in weights that have them on only one: 0, or 1 as in MaxText."""
    votes = [0, 0]
    stacks: dict[tuple[int, ...], list[Entry]] = defaultdict(list)
    for entry in entries:
        if len(entry.stacked) == 1:
            stacks[entry.name.indices].append(entry)
    for weight in others:
        name = parse_name(weight.name)
        for entry in stacks[name.indices]:
            if _likeness(entry.name.words, entry.name.role, name.words, name.role) < 1 or len(weight.shape) < 2:
                continue
            fits = [
                weight.shape[axis] == entry.stacked[0]
                and math.prod(weight.shape) == math.prod(entry.shape) * entry.stacked[0]
                for axis in (0, 1)
            ]
            if fits[0] != fits[1]:
                votes[fits.index(True)] += 1
    return int(votes[1] > votes[0])


_ORIENTED: dict[str, dict[str, str]] = {
    "linear": {"in, out": "in, out", "out, in": "out, in"},
    "linear_in_out": {"same": "in, out", "transposed": "out, in"},
}
"""Kind of a weight -> layout of it on the other side -> orientation there."""


def _orientation(entries: Sequence[Entry], others: Sequence[Weight]) -> str:
    """Orientation of the other side's linear weights that are not square; without any (in, out), as in JAX programs."""
    votes = {"in, out": 0, "out, in": 0}
    linear: dict[tuple[int, ...], list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.kind in _ORIENTED:
            linear[entry.name.indices].append(entry)
    for weight in others:
        name = parse_name(weight.name)
        for entry in linear[name.indices]:
            if _likeness(entry.name.words, entry.name.role, name.words, name.role) < 1:
                continue
            shape = weight.shape[len(entry.stacked) :]
            possible = [layout.name for layout in layouts(entry.kind, entry.shape, shape)]
            oriented = _ORIENTED[entry.kind].get(possible[0]) if len(possible) == 1 else None
            if oriented is not None:
                votes[oriented] += 1
    return max(votes, key=lambda name: votes[name])


def _named(
    options: Sequence[str], a: Sequence[Weight], b: Sequence[Weight], *, from_plain: bool
) -> dict[str, tuple[str, str]]:
    """Other side's name -> (title of the plain side's entry, the option), from ``A=B``."""
    named = {}
    known = {weight.name for weight in (b if from_plain else a)}
    for option in options:
        left, equals, right = option.partition("=")
        plain, other = (left, right) if from_plain else (right, left)
        if not equals or other not in known:
            raise UsageError(f"--map {option}: give A_NAME=B_NAME; {other or 'nothing'} is not a weight of that model")
        named[other] = (plain, option)
    return named


def _complete(
    translation: Translation, left: dict[str, Weight], plain: Sequence[Weight], other: Sequence[Weight]
) -> None:
    """``DataError`` unless every weight has a counterpart. Buffers of only one side are ignored."""
    used = {unit.weight for link in translation.links for unit in link.entry.units()}
    lost = [weight for weight in plain if weight.name not in used and weight.kind != "buffer"]
    lone = [weight for weight in left.values() if weight.kind != "buffer"]
    sides = ("A", "B") if translation.from_plain else ("B", "A")
    parts = [
        f"{side} has {', '.join(_shaped(weight) for weight in weights[:MOST_NAMED])}"
        f"{f' and {len(weights) - MOST_NAMED} more' if len(weights) > MOST_NAMED else ''}"
        for side, weights in zip(sides, (lost, lone), strict=True)
        if weights
    ]
    if parts:
        lost_and_lone = "; ".join(sorted(parts))
        line = f"weights without a counterpart: {lost_and_lone}; match them with --map A_NAME=B_NAME"
        raise MisfitError(line, *((lost, lone) if translation.from_plain else (lone, lost)))
    if sum(math.prod(weight.shape) for weight in plain) == 0 and other:
        raise DataError("neither model has weights in common")


def _shaped(weight: Weight) -> str:
    return f"{weight.name} {list(weight.shape)}"
