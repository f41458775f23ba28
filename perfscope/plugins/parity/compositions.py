"""How a weight may be composed of the weights of another model: single, fused, parts of a fused one, and stacks.

The weights of the *plain* side are divided into units (a weight, or a range of a fused one); a weight of the other side
is a stack (by layer, by expert) of rows (fused projections) of units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from perfscope.plugins.parity.document import Kind, Weight
from perfscope.plugins.parity.layouts import Shape
from perfscope.plugins.parity.names import Name, parse_name

FUSED_WORDS = {"qkv": ("q", "k", "v"), "gate_up": ("gate", "up")}
"""Word of a fused weight -> words of its parts, in order."""


class Unit(Struct, frozen=True):
    """A weight of the plain side, or the range ``begin`` to ``end`` of its outputs."""

    weight: str
    begin: int | None = None
    end: int | None = None


class Entry(Struct, frozen=True):
    """A possible composition of a weight of the other side: layers of parts that are joined along the outputs."""

    title: str
    name: Name
    stack: tuple[tuple[Unit, ...], ...]
    """Rows in the order of the stack's axes, the last one fastest."""
    shape: Shape
    """Shape of one layer."""
    kind: Kind
    order: int
    alias: bool = False
    stacked: Shape = ()
    """Lengths of the axes that the other side has for layers and experts."""

    def units(self) -> Iterable[Unit]:
        """All its units."""
        return (unit for row in self.stack for unit in row)

    @property
    def outputs(self) -> int:
        """Axis of the outputs, along which projections are joined."""
        return len(self.shape) - 1 if self.kind == "linear_in_out" else 0


def compositions(plain: Sequence[Weight], other: Sequence[Weight]) -> list[Entry]:
    """All possible compositions of weights of the other side."""
    singles = []
    for order, weight in enumerate(plain):
        names = [(weight.name, False), *((alias, True) for alias in weight.aliases)]
        for name, alias in names:
            unit = ((Unit(weight.name),),)
            singles.append(Entry(name, parse_name(name), unit, weight.shape, weight.kind, order, alias))
    sizes = _sizes(other)
    parts = [part for entry in singles for part in _parts(entry, sizes)]
    every = [*singles, *_fused(singles), *parts]
    stacks = _stacks(every)
    return [*every, *stacks, *_stacks([stack for stack in stacks if _starred_last(stack)])]


def _starred_last(stack: Entry) -> bool:
    """Whether its one open number comes before the number that it is stacked over: layers of stacked experts."""
    first = stack.title.split(" + ")[0]
    number = re.search(r"(?<=[._/])\d+|^\d+", first)
    return len(stack.name.indices) == 1 and number is not None and number.start() < first.find("*")


def _fused(singles: Sequence[Entry]) -> list[Entry]:
    """Projections of one layer as one weight."""
    groups: dict[tuple[str, tuple[object, ...]], dict[str, Entry]] = {}
    for entry in singles:
        for whole, words in FUSED_WORDS.items():
            if entry.name.words and entry.name.words[-1] in words:
                across = tuple(size for axis, size in enumerate(entry.shape) if axis != entry.outputs)
                key = (entry.name.words[:-1], entry.name.role, entry.name.indices, across)
                groups.setdefault((whole, key), {})[entry.name.words[-1]] = entry
    made = []
    for (whole, _), group in groups.items():
        words = FUSED_WORDS[whole]
        if set(group) == set(words):
            entries = [group[word] for word in words]
            first = entries[0]
            shape = list(first.shape)
            shape[first.outputs] = sum(entry.shape[first.outputs] for entry in entries)
            made.append(
                Entry(
                    " + ".join(entry.title for entry in entries),
                    Name((*first.name.words[:-1], whole), first.name.role, first.name.indices),
                    (tuple(entry.stack[0][0] for entry in entries),),
                    tuple(shape),
                    first.kind,
                    first.order,
                )
            )
    return made


Sizes = dict[tuple[str, str, tuple[int, ...]], dict[str, int]]
"""(Fused word, role, indices) -> elements of each part."""


def _sizes(other: Sequence[Weight]) -> Sizes:
    """Elements of the other side's separate projections, from which the ranges of a fused weight follow."""
    found: Sizes = {}
    for weight in other:
        name = parse_name(weight.name)
        for whole, words in FUSED_WORDS.items():
            if name.words and name.words[-1] in words:
                group = found.setdefault((whole, name.role, name.indices), {})
                group.setdefault(name.words[-1], math.prod(weight.shape))
    return found


def _parts(entry: Entry, sizes: Sizes) -> list[Entry]:
    """Projections of a fused weight. Their sizes are in the proportion of the other side's, else equal."""
    whole = entry.name.words[-1] if entry.name.words else ""
    if whole not in FUSED_WORDS or not entry.shape:
        return []
    words, rows = FUSED_WORDS[whole], entry.shape[entry.outputs]
    indices = [entry.name.indices[:length] for length in range(len(entry.name.indices), -1, -1)]
    groups = (sizes.get((whole, role, at), {}) for at in indices for role in (entry.name.role, ""))
    elements = next((group for group in groups if set(group) == set(words)), dict.fromkeys(words, 1))
    total = sum(elements.values())
    if not total or any(rows * elements[word] % total for word in words):
        return []
    made, begin = [], 0
    for word in words:
        size = rows * elements[word] // total
        shape = tuple(size if axis == entry.outputs else length for axis, length in enumerate(entry.shape))
        made.append(
            Entry(
                f"{entry.title}[{word}]",
                Name((*entry.name.words[:-1], word), entry.name.role, entry.name.indices),
                ((Unit(entry.stack[0][0].weight, begin, begin + size),),),
                shape,
                entry.kind,
                entry.order,
            )
        )
        begin += size
    return made


def _stacks(entries: Sequence[Entry]) -> list[Entry]:
    """Entries whose names differ in one index, as a stack over it."""
    groups: dict[tuple[Name, Shape, Shape, int], list[tuple[int, Entry]]] = {}
    for entry in entries:
        for position, index in enumerate(entry.name.indices):
            others = entry.name.indices[:position] + entry.name.indices[position + 1 :]
            key = (Name(entry.name.words, entry.name.role, others), entry.shape, entry.stacked, position)
            groups.setdefault(key, []).append((index, entry))
    made = []
    for (name, shape, stacked, position), members in groups.items():
        members.sort(key=lambda pair: pair[0])
        if [index for index, _ in members] != list(range(len(members))):
            continue
        first = members[0][1]
        title = starred(first.title, position)
        stack = tuple(row for _, entry in members for row in entry.stack)
        made.append(Entry(title, name, stack, shape, first.kind, first.order, stacked=(len(members), *stacked)))
    return made


def starred(title: str, position: int) -> str:
    """The title with ``*`` for its ``position``-th number, in each of its names."""

    def star(name: str) -> str:
        found = list(re.finditer(r"(?<=[._/])\d+|^\d+", name))
        return f"{name[: found[position].start()]}*{name[found[position].end() :]}" if position < len(found) else name

    return " + ".join(map(star, title.split(" + ")))
