"""Keys that identify an op across programs: path, phase, opcode, shape and line, but never its name."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from msgspec import Struct

from perfscope.analyzers.compare.runs.keys import same_files
from perfscope.analyzers.hlo import HloModule, Instruction, Shape, scope_of

MOST_DEEP = 64
"""Maximum depth of the alignment between anchors; programs need three or four."""

CHEAP = frozenset(
    {
        "broadcast", "constant", "convert", "bitcast-convert", "iota", "reshape", "compare", "select", "parameter",
        "slice", "pad", "copy", "transpose", "negate", "bitcast",
    }
)  # fmt: skip
"""Ops that XLA copies into every kernel that needs them, so two kernels that share one may be unrelated."""

CHEAP_WEIGHT = 0.1

Lines = Mapping[str, Mapping[int, Set[object]]]
"""By file: known lines, and the ops of each line."""


# Alignment of two sequences: items that occur once on both sides are anchors; the pieces between them are aligned
# again.


def aligned(base: Sequence[Hashable], head: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return pairs of positions with equal items, rising on both sides. About n log n of n items.

    Equal beginnings and ends are paired first. Then items that occur once on both sides are paired, in the longest
    order that both share (as in patience diff). Repeated items between them are paired in order.
    """
    pairs: list[tuple[int, int]] = []
    waiting = [(0, len(base), 0, len(head), 0)]
    while waiting:
        left, right, low, high, depth = waiting.pop()
        while left < right and low < high and base[left] == head[low]:
            pairs.append((left, low))
            left, low = left + 1, low + 1
        while left < right and low < high and base[right - 1] == head[high - 1]:
            right, high = right - 1, high - 1
            pairs.append((right, high))
        if left == right or low == high:
            continue
        anchors = _anchors(base, head, left, right, low, high) if depth < MOST_DEEP else []
        if not anchors:
            pairs += _in_order(base, head, left, right, low, high)
            continue
        for one, other in [*anchors, (right, high)]:
            waiting.append((left, one, low, other, depth + 1))
            left, low = one + 1, other + 1
        pairs += anchors
    return sorted(pairs)


def _anchors(
    base: Sequence[Hashable], head: Sequence[Hashable], left: int, right: int, low: int, high: int
) -> list[tuple[int, int]]:
    """Return the items that occur once on both sides, in their longest common order."""
    mine, theirs = Counter(base[left:right]), Counter(head[low:high])
    position_of = {head[index]: index for index in range(low, high) if theirs[head[index]] == 1}
    shared = [
        (index, position_of[base[index]])
        for index in range(left, right)
        if mine[base[index]] == 1 and base[index] in position_of
    ]
    return longest_rising(shared)


def longest_rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest run that rises on both sides, from pairs that rise on the left."""
    tails: list[int] = []
    at_tail: list[int] = []
    before: list[int] = []
    for number, (_, value) in enumerate(pairs):
        index = bisect_left(tails, value)
        before.append(at_tail[index - 1] if index else -1)
        if index == len(tails):
            tails.append(value)
            at_tail.append(number)
        else:
            tails[index], at_tail[index] = value, number
    result: list[tuple[int, int]] = []
    number = at_tail[-1] if at_tail else -1
    while number >= 0:
        result.append(pairs[number])
        number = before[number]
    return result[::-1]


def _in_order(
    base: Sequence[Hashable], head: Sequence[Hashable], left: int, right: int, low: int, high: int
) -> list[tuple[int, int]]:
    """Pair each repeated item with the next equal item."""
    positions: dict[Hashable, list[int]] = {}
    for index in range(low, high):
        positions.setdefault(head[index], []).append(index)
    pairs, last = [], low
    for index in range(left, right):
        rows = positions.get(base[index], [])
        next_one = bisect_left(rows, last)
        if next_one < len(rows):
            pairs.append((index, rows[next_one]))
            last = rows[next_one] + 1
    return pairs


class OpKey(NamedTuple):
    """Identity of an op; ``line`` as the head counts lines."""

    path: tuple[str, ...]
    phase: str
    primitive: str
    opcode: str
    shape: str
    file: str
    line: int

    def place(self) -> str:
        """``model.py:17``, else the scope."""
        if self.file:
            return f"{self.file}:{self.line}" if self.line >= 0 else self.file
        return "/".join(self.path)

    def without_shape(self) -> OpKey:
        """Return the key without size and type."""
        return self._replace(shape="")

    def without_line(self) -> OpKey:
        """Return the key without the line, for the same op elsewhere in the code."""
        return self._replace(line=-1, file="")


class LineMap(Struct, frozen=True):
    """Positions of the base's lines in the head's files."""

    files: Mapping[str, str]
    lines: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """By file of the base: known lines, rising, and the current line of each."""

    def place(self, file: str, line: int | None) -> str:
        """Return ``model.py:17`` as the head names and counts it; without a line, the file."""
        return self.file(file) if line is None or line < 0 else f"{self.file(file)}:{self.line(file, line)}"

    def file(self, name: str) -> str:
        """Return the file's name in the head."""
        return self.files.get(name, name)

    def line(self, file: str, line: int) -> int:
        """Return the line as the head counts; an unknown line keeps its distance to the nearest known line above."""
        known = self.lines.get(file)
        if known is None or line < 0 or not known[0]:
            return line
        index = bisect_right(known[0], line) - 1
        index = max(index, 0)
        return line + known[1][index] - known[0][index]


NO_LINES = LineMap({}, {})


def shape_text(shape: Shape) -> str:
    """Return ``f32[4,8]``, or the parts of a tuple."""
    if shape.dtype == "tuple":
        return f"({', '.join(shape_text(part) for part in shape.parts[:8])}{', ...' * (len(shape.parts) > 8)})"
    return f"{shape.dtype}[{','.join(map(str, shape.dims))}]"


def plain_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return a path without repeated scopes: ``jax.checkpoint`` names the surrounding scopes once more."""
    return tuple(name for index, name in enumerate(path) if not index or name != path[index - 1])


def op_key(instruction: Instruction, lines: LineMap = NO_LINES) -> OpKey:
    """Return the key of an instruction. ``lines``: map from its side's lines to the head's."""
    scope = scope_of(instruction.op_name)
    file = instruction.file or ""
    return OpKey(
        path=plain_path(scope.path),
        phase=scope.phase if instruction.op_name else "",
        primitive=scope.primitive,
        opcode=instruction.opcode.removesuffix("-start"),
        shape=shape_text(instruction.shape),
        file=lines.file(file),
        line=-1 if instruction.line is None else lines.line(file, instruction.line),
    )


def line_map(base: Lines, head: Lines) -> LineMap:
    """Map lines from base to head, from the ops of each line.

    The lines of a file are two sequences of sets. Equal sets are aligned. Lines between two aligned lines are paired in
    order if both sides have the same number of them.
    """
    files = same_files(set(base), set(head))
    result = {}
    for file in sorted(base):
        if files.get(file, file) not in head:
            continue
        mine, theirs = (sorted(lines.items()) for lines in (base[file], head[files.get(file, file)]))
        pairs = aligned(*([frozenset(what) for _, what in side] for side in (mine, theirs)))
        known = {mine[one][0]: theirs[other][0] for one, other in pairs}
        for (one, other), (end, last) in pairwise([(-1, -1), *pairs, (len(mine), len(theirs))]):
            between = mine[one + 1 : end], theirs[other + 1 : last]
            if len(between[0]) == len(between[1]):
                known.update((line, now) for (line, _), (now, _) in zip(*between, strict=True))
        result[file] = tuple(sorted(known)), tuple(known[line] for line in sorted(known))
    return LineMap(files, result)


def lines_of(module: HloModule) -> Lines:
    """Return the lines of a program, each with its ops."""
    by_file: dict[str, dict[int, set[object]]] = defaultdict(lambda: defaultdict(set))
    for _, instruction in module.instructions():
        if instruction.file is not None and instruction.line is not None and instruction.op_name:
            scope = scope_of(instruction.op_name)
            by_file[instruction.file][instruction.line].add(
                (plain_path(scope.path), scope.primitive, instruction.opcode, shape_text(instruction.shape))
            )
    return by_file
