"""How a weight may be composed of the weights of another model: single, fused, parts of a fused one, and stacks.

The weights of the *plain* side are divided into units (a weight, or a range of a fused one); a weight of the other side
is a stack (by layer, by expert) of rows (fused projections) of units.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.model.errors import DataError
from perfscope.plugins.parity.document import Kind, Weight
from perfscope.plugins.parity.heads import IN_ORDER, NONE, WORD, ranges
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
    heads: str = ""
    """Order of the heads of a fused projection, as `Weight.heads`."""

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
            singles.append(
                Entry(name, parse_name(name), unit, weight.shape, weight.kind, order, alias, heads=weight.heads)
            )
    sizes = _sizes(other)
    parts = [
        part for entry in singles for part in (_parts(entry, sizes) if entry.heads in IN_ORDER else _alternating(entry))
    ]
    wanted = {weight.heads for weight in other}
    fused = [made for entry in _fused(singles) for made in _ordered(entry, wanted)]
    whole = [made for entry in singles for made in _reordered(entry, wanted)]
    every = [*singles, *fused, *whole, *parts]
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


def _ordered(entry: Entry, wanted: set[str]) -> list[Entry]:
    """Separate projections as one weight, one after the other, and in each order of heads that is ``wanted``."""
    found = [entry]
    for heads in sorted(wanted - set(IN_ORDER)) if entry.name.words[-1] == WORD else ():
        units = dict(zip(FUSED_WORDS[WORD], entry.stack[0], strict=True))
        places = dict.fromkeys(units, 0)
        row = []
        try:
            groups = ranges(entry.title, entry.shape[entry.outputs], heads)
        except DataError:
            continue  # of other sizes, as of another layer
        for group in groups:
            for word, (begin, end) in group.items():
                row.append(Unit(units[word].weight, places[word], places[word] + end - begin))
                places[word] += end - begin
        found.append(replace(entry, title=f"{entry.title} [as {heads}]", stack=(tuple(row),), heads=heads))
    return found


def _alternating(entry: Entry) -> list[Entry]:
    """Projections of a fused weight whose heads alternate."""
    made = []
    groups = ranges(entry.title, entry.shape[entry.outputs], entry.heads)
    for word in FUSED_WORDS[WORD]:
        row = tuple(Unit(entry.stack[0][0].weight, *group[word]) for group in groups)
        size = sum(end - begin for begin, end in (group[word] for group in groups))
        shape = tuple(size if axis == entry.outputs else length for axis, length in enumerate(entry.shape))
        name = Name((*entry.name.words[:-1], word), entry.name.role, entry.name.indices)
        title = f"{entry.title}[{word} of {entry.heads}]"
        made.append(replace(entry, title=title, name=name, stack=(row,), shape=shape, heads=""))
    return made


def _reordered(entry: Entry, wanted: set[str]) -> list[Entry]:
    """A fused weight whose heads alternate with its parts one after the other, and the other way round."""
    if not entry.name.words or entry.name.words[-1] != WORD:
        return []
    rows, weight = entry.shape[entry.outputs], entry.stack[0][0].weight
    found = []
    alternates = entry.heads not in IN_ORDER
    for heads in (NONE,) if alternates else sorted(wanted - set(IN_ORDER)):
        try:
            old = ranges(entry.title, rows, entry.heads if alternates else heads)
        except DataError:
            if alternates:
                raise
            continue  # of other sizes, as of another layer
        sizes = {word: sum(group[word][1] - group[word][0] for group in old) for word in FUSED_WORDS[WORD]}
        units = []
        if alternates:
            units = [Unit(weight, *group[word]) for word in FUSED_WORDS[WORD] for group in old]
        else:
            places = {"q": 0, "k": sizes["q"], "v": sizes["q"] + sizes["k"]}
            for group in old:
                for word, (begin, end) in group.items():
                    units.append(Unit(weight, places[word], places[word] + end - begin))
                    places[word] += end - begin
        title = f"{entry.title} [of {entry.heads}]" if alternates else f"{entry.title} [as {heads}]"
        found.append(replace(entry, title=title, stack=(tuple(units),), heads=heads))
    return found


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
    groups: dict[tuple[Name, Shape, Shape, int, str], list[tuple[int, Entry]]] = {}
    for entry in entries:
        for position, index in enumerate(entry.name.indices):
            others = entry.name.indices[:position] + entry.name.indices[position + 1 :]
            name = Name(entry.name.words, entry.name.role, others)
            key = (name, entry.shape, entry.stacked, position, entry.heads)
            groups.setdefault(key, []).append((index, entry))
    made = []
    for (name, shape, stacked, position, heads), members in groups.items():
        members.sort(key=lambda pair: pair[0])
        if [index for index, _ in members] != list(range(len(members))):
            continue
        first = members[0][1]
        title = starred(first.title, position)
        stack = tuple(row for _, entry in members for row in entry.stack)
        sizes = (len(members), *stacked)
        made.append(Entry(title, name, stack, shape, first.kind, first.order, stacked=sizes, heads=heads))
    return made


def starred(title: str, position: int) -> str:
    """The title with ``*`` for its ``position``-th number, in each of its names."""

    def star(name: str) -> str:
        found = list(re.finditer(r"(?<=[._/])\d+|^\d+", name))
        return f"{name[: found[position].start()]}*{name[found[position].end() :]}" if position < len(found) else name

    return " + ".join(map(star, title.split(" + ")))
