"""Translates the weights of one model into those of another: by name, shape and order, or by the user's mapping.

One side is *plain*: PyTorch's, or A if both have one framework. Its weights are divided into units (a weight, or a
third of a fused one); a weight of the other side is a stack (by layer) of rows (fused projections) of units.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct, field

from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.parity.document import Arrays, Kind, Mapping, Weight
from perfscope.plugins.parity.layouts import FUSED, Layout, Shape, layouts, same
from perfscope.plugins.parity.names import Name, likeness, parse_name

MOST_NAMED = 4
"""Most weights named in an error."""
_PROJECTIONS = ("q", "k", "v")
By = Literal["name", "order", "option"]


class Unit(Struct, frozen=True):
    """A weight of the plain side, or ``part`` 0 to 2 of a fused one."""

    weight: str
    part: int | None = None


class Entry(Struct, frozen=True):
    """A possible composition of a weight of the other side: layers of parts that are joined along the outputs."""

    title: str
    name: Name
    stack: tuple[tuple[Unit, ...], ...]
    shape: Shape
    """Shape of one layer."""
    kind: Kind
    order: int
    alias: bool = False
    stacked: bool = False
    """Whether the other side has an axis for its layers."""

    def units(self) -> Iterable[Unit]:
        """All its units."""
        return (unit for row in self.stack for unit in row)


class Link(Struct, frozen=True):
    """A weight of the other side, and its composition."""

    other: str
    entry: Entry
    layout: Layout
    by: By


class Translation(Struct):
    """All links of two models. ``from_plain``: A is the plain side."""

    links: tuple[Link, ...]
    from_plain: bool
    plain: dict[str, Weight] = field(default_factory=dict)

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
                known |= {f"{link.other}[{index}]": row for index, row in enumerate(rows)}
        return known

    def _to_other(self, arrays: Arrays) -> Arrays:
        made = {}
        for link in self.links:
            rows = [
                link.layout.forth(np.concatenate([self._part(arrays[unit.weight], unit) for unit in row]))
                if len(row) > 1
                else link.layout.forth(self._part(arrays[row[0].weight], row[0]))
                for row in link.entry.stack
            ]
            made[link.other] = np.stack(rows) if link.entry.stacked else rows[0]
        return made

    def _part(self, array: np.ndarray, unit: Unit) -> np.ndarray:
        return array if unit.part is None else np.split(array, FUSED)[unit.part]

    def _to_plain(self, arrays: Arrays, *, add: bool = False) -> Arrays:
        made: Arrays = {}
        for link in self.links:
            layers = arrays[link.other] if link.entry.stacked else arrays[link.other][None]
            for row, layer in zip(link.entry.stack, layers, strict=True):
                whole = link.layout.back(layer)
                sizes = [self._rows(unit) for unit in row]
                pieces = np.split(whole, np.cumsum(sizes)[:-1]) if len(row) > 1 else [whole]
                for unit, piece in zip(row, pieces, strict=True):
                    if add and unit.part is None and unit.weight in made:
                        made[unit.weight] = made[unit.weight] + piece
                    else:
                        self._put(made, unit, piece, link.other)
        return made

    def _rows(self, unit: Unit) -> int:
        return self.plain[unit.weight].shape[0] // (1 if unit.part is None else FUSED)

    def _put(self, made: Arrays, unit: Unit, piece: np.ndarray, source: str) -> None:
        if unit.part is not None:
            target = made.setdefault(unit.weight, np.empty(self.plain[unit.weight].shape, piece.dtype))
            rows = len(target) // FUSED
            target[unit.part * rows : (unit.part + 1) * rows] = piece
        elif unit.weight in made and not np.array_equal(made[unit.weight], piece):
            raise DataError(f"{unit.weight} is tied: {source} has other values than another weight that it represents")
        else:
            made[unit.weight] = piece


def translate(
    a: Sequence[Weight], b: Sequence[Weight], *, a_is_torch: bool, b_is_torch: bool, options: Sequence[str] = ()
) -> Translation:
    """Map A's weights to B's. ``options``: ``A_NAME=B_NAME`` each.

    ``DataError`` with one line if a weight of either side has no counterpart, ``UsageError`` for an invalid option.
    """
    from_plain = a_is_torch or not b_is_torch
    plain, other = (a, b) if from_plain else (b, a)
    named = _named(options, a, b, from_plain=from_plain)
    both_torch = a_is_torch and b_is_torch
    left = {weight.name: weight for weight in other}
    links: list[Link] = []
    used: set[tuple[Unit, str]] = set()

    def link(weight: Weight, entry: Entry, layout: Layout, by: By) -> None:
        links.append(Link(weight.name, entry, layout, by))
        used.update((unit, entry.title if entry.alias else "") for unit in entry.units())
        del left[weight.name]

    def free(entry: Entry) -> bool:
        return not any((unit, entry.title if entry.alias else "") in used for unit in entry.units())

    entries = _entries(plain)
    orientation = "out, in" if both_torch else _orientation(entries, other)
    for by, least in (("option", 2.5), ("name", 0.5), ("order", -1.0)):
        for weight, entry, layout in _candidates(entries, list(left.values()), named, orientation, least):
            if weight.name in left and free(entry):
                link(weight, entry, layout, by)  # type: ignore[arg-type]
    translation = Translation(tuple(links), from_plain, {weight.name: weight for weight in plain})
    _complete(translation, left, plain, other)
    return translation


def _entries(plain: Sequence[Weight]) -> list[Entry]:
    """All possible compositions of a weight of the other side."""
    singles = []
    for order, weight in enumerate(plain):
        names = [(weight.name, False), *((alias, True) for alias in weight.aliases)]
        for name, alias in names:
            unit = ((Unit(weight.name),),)
            singles.append(Entry(name, parse_name(name), unit, weight.shape, weight.kind, order, alias))
    fused, parts = _fused(singles), [part for entry in singles for part in _parts(entry)]
    every = [*singles, *fused, *parts]
    return [*every, *_stacks(every)]


def _fused(singles: Sequence[Entry]) -> list[Entry]:
    """Query, key and value of one layer as one weight."""
    groups: dict[tuple[object, ...], dict[str, Entry]] = {}
    for entry in singles:
        if entry.name.words and entry.name.words[-1] in _PROJECTIONS:
            key = (entry.name.words[:-1], entry.name.role, entry.name.indices, entry.shape[1:])
            groups.setdefault(key, {})[entry.name.words[-1]] = entry
    made = []
    for group in groups.values():
        if set(group) == set(_PROJECTIONS):
            q, k, v = (group[word] for word in _PROJECTIONS)
            row = tuple(entry.stack[0][0] for entry in (q, k, v))
            shape = (q.shape[0] + k.shape[0] + v.shape[0], *q.shape[1:])
            name = Name((*q.name.words[:-1], "qkv"), q.name.role, q.name.indices)
            title = " + ".join(entry.title for entry in (q, k, v))
            made.append(Entry(title, name, (row,), shape, q.kind, q.order))
    return made


def _parts(entry: Entry) -> list[Entry]:
    """Query, key and value of a fused weight, each a third."""
    fused = entry.name.words and entry.name.words[-1] == "qkv" and entry.kind != "linear_in_out"
    if not fused or not entry.shape or entry.shape[0] % FUSED:
        return []
    shape = (entry.shape[0] // FUSED, *entry.shape[1:])
    return [
        Entry(
            f"{entry.title}[{word}]",
            Name((*entry.name.words[:-1], word), entry.name.role, entry.name.indices),
            ((Unit(entry.title, part),),),
            shape,
            entry.kind,
            entry.order,
        )
        for part, word in enumerate(_PROJECTIONS)
    ]


def _stacks(entries: Sequence[Entry]) -> list[Entry]:
    """Entries whose names differ in one index, as a stack over it."""
    groups: dict[tuple[Name, Shape, int], list[tuple[int, Entry]]] = {}
    for entry in entries:
        for position, index in enumerate(entry.name.indices):
            others = entry.name.indices[:position] + entry.name.indices[position + 1 :]
            key = (Name(entry.name.words, entry.name.role, others), entry.shape, position)
            groups.setdefault(key, []).append((index, entry))
    made = []
    for (name, shape, position), members in groups.items():
        members.sort(key=lambda pair: pair[0])
        if [index for index, _ in members] != list(range(len(members))):
            continue
        first = members[0][1]
        title = _starred(first.title, position)
        stack = tuple(entry.stack[0] for _, entry in members)
        made.append(Entry(title, name, stack, shape, first.kind, first.order, stacked=True))
    return made


def _starred(title: str, position: int) -> str:
    """The title with ``*`` for its ``position``-th number, in each of its names."""

    def star(name: str) -> str:
        found = list(re.finditer(r"(?<=[._/])\d+|^\d+", name))
        return f"{name[: found[position].start()]}*{name[found[position].end() :]}" if position < len(found) else name

    return " + ".join(map(star, title.split(" + ")))


def _candidates(
    entries: Sequence[Entry], others: Sequence[Weight], named: dict[str, str], orientation: str, least: float
) -> list[tuple[Weight, Entry, Layout]]:
    """Possible links, most likely first; equally likely ones in the order of both models."""
    found = []
    for order, weight in enumerate(others):
        name = parse_name(weight.name)
        for entry in entries:
            if weight.name in named:
                score = 3.0 if named[weight.name] == entry.title else -2.0
            else:
                score = likeness(entry.name, name) if entry.name.indices == name.indices or least < 0 else -2.0
            layout = _layout(entry, weight, orientation) if score >= least else None
            if layout is not None:
                found.append(
                    (
                        (-score, abs(entry.order - order) if least < 0 else 0, entry.order, order),
                        (weight, entry, layout),
                    )
                )
    return [candidate for _, candidate in sorted(found, key=lambda pair: pair[0])]


def _layout(entry: Entry, weight: Weight, orientation: str) -> Layout | None:
    """Layout of the entry in a weight of the other side; ``None`` if it does not fit."""
    shape = weight.shape
    if entry.stacked:
        if not shape or shape[0] != len(entry.stack):
            return None
        shape = shape[1:]
    if weight.kind and {weight.kind, entry.kind} != {"linear", "linear_in_out"}:  # both are PyTorch's
        return same(entry.shape, shape) if entry.shape == shape else None
    possible = layouts(entry.kind, entry.shape, shape, fused=len(entry.stack[0]) > 1 or "qkv" in entry.name.words)
    names = [layout.name for layout in possible]
    if names == ["in, out", "out, in"] and (orientation == "out, in" or weight.name.endswith("weight")):
        return possible[1]
    return possible[0] if possible else None


def _orientation(entries: Sequence[Entry], others: Sequence[Weight]) -> str:
    """Orientation of the other side's linear weights that are not square; without any (in, out), as in JAX programs."""
    votes = {"in, out": 0, "out, in": 0}
    for weight in others:
        name = parse_name(weight.name)
        for entry in entries:
            shape = weight.shape[1:] if entry.stacked else weight.shape
            if entry.kind == "linear" and likeness(entry.name, name) >= 1:
                possible = [layout.name for layout in layouts("linear", entry.shape, shape)]
                if len(possible) == 1 and possible[0] in votes:
                    votes[possible[0]] += 1
    return max(votes, key=lambda name: votes[name])


def _named(options: Sequence[str], a: Sequence[Weight], b: Sequence[Weight], *, from_plain: bool) -> dict[str, str]:
    """Other side's name -> title of the plain side's entry, from ``A=B``."""
    named = {}
    for option in options:
        left, equals, right = option.partition("=")
        plain, other = (left, right) if from_plain else (right, left)
        known = {weight.name for weight in (b if from_plain else a)}
        if not equals or other not in known:
            raise UsageError(f"--map {option}: give A_NAME=B_NAME; {other or 'nothing'} is not a weight of that model")
        named[other] = plain
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
        raise DataError(f"weights without a counterpart: {lost_and_lone}; match them with --map A_NAME=B_NAME")
    if sum(math.prod(weight.shape) for weight in plain) == 0 and other:
        raise DataError("neither model has weights in common")


def _shaped(weight: Weight) -> str:
    return f"{weight.name} {list(weight.shape)}"
