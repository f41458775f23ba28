"""What makes an op of one program the op of another: its path, phase, opcode, shape and line, never its name."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from perfscope.analyzers.compare.programs.sequence import aligned
from perfscope.analyzers.compare.runs.align import same_files
from perfscope.analyzers.hlo.module import HloModule, Instruction, Shape
from perfscope.analyzers.hlo.scope import scope_of

CHEAP = frozenset(
    {
        "broadcast", "constant", "convert", "bitcast-convert", "iota", "reshape", "compare", "select", "parameter",
        "slice", "pad", "copy", "transpose", "negate", "bitcast",
    }
)  # fmt: skip
"""Ops that XLA copies into every kernel that wants them: that two kernels share one says little."""
CHEAP_WEIGHT = 0.1


class OpKey(NamedTuple):
    """Where and what an op is; ``line`` as the head counts lines."""

    path: tuple[str, ...]
    phase: str
    primitive: str
    opcode: str
    shape: str
    file: str
    line: int

    def without_shape(self) -> OpKey:
        """At the same line, of another size or type."""
        return self._replace(shape="")

    def without_line(self) -> OpKey:
        """The same op elsewhere in the code."""
        return self._replace(line=-1, file="")


@dataclass(frozen=True, slots=True)
class LineMap:
    """Where the lines of the base's files are in the head's."""

    files: Mapping[str, str]
    lines: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    """By file of the base: its lines that are known, rising, and where each is now."""

    def file(self, name: str) -> str:
        """The file as the head names it."""
        return self.files.get(name, name)

    def line(self, file: str, line: int) -> int:
        """The line as the head counts; of one that is not known, as far off as the nearest known one above it."""
        known = self.lines.get(file)
        if known is None or line < 0 or not known[0]:
            return line
        at = bisect_right(known[0], line) - 1
        at = max(at, 0)
        return line + known[1][at] - known[0][at]


NO_LINES = LineMap({}, {})


def shape_text(shape: Shape) -> str:
    """``f32[4,8]``; of a tuple its parts."""
    if shape.dtype == "tuple":
        return f"({', '.join(shape_text(part) for part in shape.parts[:8])}{', ...' * (len(shape.parts) > 8)})"
    return f"{shape.dtype}[{','.join(map(str, shape.dims))}]"


def plain_path(path: tuple[str, ...]) -> tuple[str, ...]:
    """A path that says no scope twice in a row: ``jax.checkpoint`` names those around it once more."""
    return tuple(name for at, name in enumerate(path) if not at or name != path[at - 1])


def op_key(one: Instruction, lines: LineMap = NO_LINES) -> OpKey:
    """The key of an instruction; ``lines``: where the lines of its side are in the head."""
    scope = scope_of(one.op_name)
    file = one.file or ""
    return OpKey(
        path=plain_path(scope.path),
        phase=scope.phase if one.op_name else "",
        primitive=scope.primitive,
        opcode=one.opcode.removesuffix("-start"),
        shape=shape_text(one.shape),
        file=lines.file(file),
        line=-1 if one.line is None else lines.line(file, one.line),
    )


_What = frozenset[object]


def line_map(base: Iterable[HloModule], head: Iterable[HloModule]) -> LineMap:
    """How lines moved from base to head, told from the ops that each line makes.

    The lines of a file are two sequences of sets of ops; what is the same in them is aligned, and lines between two
    that are aligned are one another in order where there are as many on both sides.
    """
    mine, theirs = _lines_of(base), _lines_of(head)
    files = same_files(set(mine), set(theirs))
    found = {}
    for file, held in mine.items():
        other = theirs.get(files.get(file, file))
        if other is not None:
            found[file] = lines_between(held, other)
    return LineMap(files, found)


def _lines_of(modules: Iterable[HloModule]) -> dict[str, dict[int, _What]]:
    held: dict[str, dict[int, set[tuple[object, ...]]]] = defaultdict(lambda: defaultdict(set))
    for module in modules:
        for _, one in module.instructions():
            if one.file is not None and one.line is not None and one.op_name:
                scope = scope_of(one.op_name)
                held[one.file][one.line].add(
                    (plain_path(scope.path), scope.primitive, one.opcode, shape_text(one.shape))
                )
    return {
        file: {line: frozenset(what) for line, what in sorted(lines.items())} for file, lines in sorted(held.items())
    }


def lines_between(base: Mapping[int, _What], head: Mapping[int, _What]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Lines of a file of the base and where they are in the head, both rising, by what each line makes."""
    left, right = list(base), list(head)
    pairs = aligned(list(base.values()), list(head.values()))
    known = {left[one]: right[other] for one, other in pairs}
    edges = [(-1, -1), *pairs, (len(left), len(right))]
    for (one, other), (end, last) in pairwise(edges):
        between = left[one + 1 : end], right[other + 1 : last]
        if len(between[0]) == len(between[1]):
            known.update(zip(*between, strict=True))
    lines = sorted(known.items())
    return tuple(line for line, _ in lines), tuple(now for _, now in lines)
