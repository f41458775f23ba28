"""Layers of both sides, and their pairs: by the sizes and the names of their weights, then by their order."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec import Struct

from perfscope.plugins.parity import Name, likeness, parse_name
from perfscope.plugins.port.labels import Layer
from perfscope.plugins.port.pieces import Program

MOST_JOINED = 4
"""Most layers of one side that are one layer of the other: query, key and value; gate and up."""


class One(Struct, frozen=True, kw_only=True):
    """A single layer of a side: one turn of a stacked one."""

    layer: int
    turn: int
    name: str
    parsed: Name
    elements: int
    multiplies: bool
    """Its weights are factors of products."""
    position: float
    """0 to 1: its place in the order of the forward pass."""


class Pair(Struct, frozen=True, kw_only=True):
    """Layers that compute the same; empty on the side that lacks it."""

    name: str
    a: tuple[One, ...]
    b: tuple[One, ...]


def layers_of(program: Program) -> list[Layer]:
    """Weights by layer, in the order of the forward pass."""
    first: dict[int, int] = {}
    flops: dict[int, int] = defaultdict(int)
    for number, piece in enumerate(program.pieces):
        if piece.phase == "forward" and not piece.carries:  # a weight may be moved long before its use
            for used in piece.weights:
                first.setdefault(used, number)
                flops[used] += piece.flops // max(1, len(piece.weights))
    groups: dict[object, list[int]] = defaultdict(list)
    names = plain_names([weight.name for weight in program.weights])
    for number, weight in enumerate(program.weights):
        if number in first:
            parsed = parse_name(names[number])
            key: object = (
                weight.name if program.framework == "torch" else (parsed.words, parsed.indices, weight.stacked)
            )
            groups[key].append(number)
    result = [
        Layer(
            name=shared_name([names[one] for one in numbers]),
            weights=tuple(numbers),
            elements=sum(program.weights[one].elements for one in numbers),
            stacked=program.weights[numbers[0]].stacked,
            flops=sum(flops[one] for one in numbers) // program.weights[numbers[0]].stacked,
            first=min(first[one] for one in numbers),
        )
        for numbers in groups.values()
    ]
    return sorted(result, key=lambda layer: layer.first)


def plain_names(names: Sequence[str]) -> list[str]:
    """Paths without quotes and brackets, and without the parts that all begin with."""
    parts = [[part for part in re.split(r"[.\[\]/'\"]+", name) if part] for name in names]
    while parts and all(len(one) > 1 for one in parts) and len({one[0] for one in parts}) == 1:
        parts = [one[1:] for one in parts]
    return [".".join(one) for one in parts]


def shared_name(names: Sequence[str]) -> str:
    """The part of several names that all begin with; the first name if they share nothing."""
    parts = [name.split(".") for name in names]
    shared = []
    for column in zip(*parts, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    if len(names) == 1 or not shared or len(shared) < min(map(len, parts)) - 1:
        return names[0]
    whole = ".".join(shared)
    stems = {part[len(shared)].partition("_")[0] for part in parts if len(part) > len(shared)}
    return f"{whole}.{stems.pop()}" if len(stems) == 1 else whole


def singles(layers: Sequence[Layer]) -> list[One]:
    """Every layer once, stacked ones turn by turn, in the order in which the forward pass uses them."""
    order: list[tuple[tuple[int, int, int], int, int]] = []
    group = -1
    for number, layer in enumerate(layers):
        if layer.stacked == 1 or number == 0 or layers[number - 1].stacked != layer.stacked:
            group += 1
        order += [((group, turn, number), number, turn) for turn in range(layer.stacked)]
    order.sort()
    return [
        One(
            layer=number,
            turn=turn,
            name=_numbered(layers[number], turn),
            parsed=parse_name(_numbered(layers[number], turn)),
            elements=layers[number].elements,
            multiplies=layers[number].flops > 0,
            position=place / max(1, len(order) - 1),
        )
        for place, (_, number, turn) in enumerate(order)
    ]


def _numbered(layer: Layer, turn: int) -> str:
    """The name with the turn after the first part: ``blocks.up`` is ``blocks.0.up``."""
    if layer.stacked == 1:
        return layer.name
    head, _, rest = layer.name.partition(".")
    return f"{head}.{turn}.{rest}" if rest else f"{head}.{turn}"


def pair_layers(a: Sequence[One], b: Sequence[One]) -> list[Pair]:
    """All pairs in the order of A; layers of B without a partner follow the layer before them."""
    partner: dict[int, tuple[int, ...]] = {}
    taken: set[int] = set()
    of_a, of_b = _by_size(a), _by_size(b)
    scored = [
        (_score(a[number], b[other]), number, other)
        for size in of_a.keys() & of_b.keys()
        for number, other in _candidates(a, b, of_a[size], of_b[size])
    ]
    for _, number, other in sorted(scored, key=lambda row: (-row[0], row[1], row[2])):
        if number not in partner and other not in taken:
            partner[number] = (other,)
            taken.add(other)
    groups = _joined(a, b, partner, taken)
    result: list[Pair] = []
    absorbed = {number for group in groups for number in group[0]}
    done: set[int] = set()

    def rest_of_b(until: int) -> None:
        for other in range(until):
            if other not in taken and other not in done:
                done.add(other)
                result.append(Pair(name=b[other].name, a=(), b=(b[other],)))

    for number, one in enumerate(a):
        if number in partner:
            rest_of_b(partner[number][0])
            (other,) = partner[number]
            named = one if one.parsed.words else b[other]
            result.append(Pair(name=named.name, a=(one,), b=(b[other],)))
        elif number in absorbed:
            group = next(group for group in groups if number in group[0])
            if number == group[0][0]:
                rest_of_b(group[1][0])
                parts = tuple(a[other] for other in group[0])
                result.append(
                    Pair(name=_common([part.name for part in parts]), a=parts, b=tuple(b[o] for o in group[1]))
                )
        else:
            result.append(Pair(name=one.name, a=(one,), b=()))
    rest_of_b(len(b))
    return result


def _by_size(ones: Sequence[One]) -> dict[int, list[int]]:
    result: dict[int, list[int]] = defaultdict(list)
    for number, one in enumerate(ones):
        result[one.elements].append(number)
    return result


def _candidates(
    a: Sequence[One], b: Sequence[One], of_a: Sequence[int], of_b: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Pairs that may be: of layers without names (Flax's ``nnx.jit`` numbers them), one after the other in order.

    Layers with products are apart then; with names they are not, because a compiler may fuse a norm into a product.
    """
    nameless = any(not one.parsed.words for one in (*(a[n] for n in of_a), *(b[n] for n in of_b)))
    parts = [
        ([n for n in of_a if a[n].multiplies is product], [n for n in of_b if b[n].multiplies is product])
        for product in (False, True)
    ]
    if nameless and all(len(one) == len(other) for one, other in parts):
        return itertools.chain(*(zip(one, other, strict=True) for one, other in parts))
    return itertools.product(of_a, of_b)


def _score(one: One, other: One) -> float:
    """How well two layers of equal size fit: names, numbers, and place in the model."""
    same = one.parsed.indices == other.parsed.indices
    apart = bool(one.parsed.indices and other.parsed.indices and not same)
    return likeness(one.parsed, other.parsed) + same - apart - abs(one.position - other.position)


def _joined(
    a: Sequence[One], b: Sequence[One], partner: dict[int, tuple[int, ...]], taken: set[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Groups of layers of one side that have the size of one layer of the other: q, k and v."""
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    free_a = [number for number in range(len(a)) if number not in partner]
    free_b = [number for number in range(len(b)) if number not in taken]
    used: set[int] = set()
    for number in free_a:
        run = _run(a[number], free_b, b, taken)
        if run:
            found.append(((number,), run))
            taken.update(run)
            used.add(number)
    free_a = [number for number in free_a if number not in used]
    spent: set[int] = set()
    for other in [one for one in free_b if one not in taken]:
        run = _run(b[other], free_a, a, spent)
        if run:
            found.append((run, (other,)))
            spent.update(run)
            taken.add(other)
    return found


def _run(whole: One, free: Sequence[int], ones: Sequence[One], taken: set[int]) -> tuple[int, ...]:
    """Consecutive free layers of one part of the model that have the size of a layer together."""
    numbers = [number for number in free if number not in taken]
    for start in range(len(numbers)):
        total = 0
        for end in range(start, min(start + MOST_JOINED, len(numbers))):
            part = ones[numbers[end]]
            total += part.elements
            apart = (
                _parent(part) != _parent(ones[numbers[start]]) and end > start + 1
            )  # two may be a tied head and its bias
            if part.parsed.indices != whole.parsed.indices or apart:
                break
            if total == whole.elements and end > start:
                return tuple(numbers[start : end + 1])
    return ()


def _parent(one: One) -> str:
    return one.name.rpartition(".")[0]


def _common(names: Sequence[str]) -> str:
    parts = [name.split(".") for name in names]
    shared = []
    for column in zip(*parts, strict=False):
        if len(set(column)) > 1:
            break
        shared.append(column[0])
    last = ", ".join(rest for part in parts if (rest := ".".join(part[len(shared) :])))
    return ".".join([*shared, last] if last else shared)
