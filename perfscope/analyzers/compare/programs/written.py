"""What differs in the programs before the compiler optimized them: lines, and the ops beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from perfscope.analyzers.compare.programs.keys import NO_LINES, LineMap, OpKey, op_key
from perfscope.analyzers.compare.programs.row import Written
from perfscope.analyzers.hlo.module import HloModule, Instruction

HOPS = 2
"""Ops between a line that changed and what it is made responsible for."""

MOST_CHANGED = 2_000
"""Ops that differ for their neighbours to be looked at: with more of them another program was written."""

_NOT_WRITTEN = frozenset(
    {"parameter", "constant", "tuple", "get-tuple-element", "call", "while", "conditional", "bitcast", "broadcast"}
)
"""Opcodes that stand for the structure of a program, or that JAX adds to any op."""

Near = tuple[str, int, str]
"""File, line and primitive of an op, as the head counts lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenChange:
    """Lines that differ, and the ops that they may have touched."""

    rows: tuple[Written, ...]
    near: Mapping[Near, tuple[int, str]] = field(default_factory=dict)
    """Op -> (steps between the two, line that differs), the nearest line."""

    def source_of(self, keys: Iterable[OpKey]) -> str:
        """The line that differs next to any of these ops; ``''`` where none is near."""
        found = (self.near.get(near_of(key)) for key in keys)
        return min((one for one in found if one is not None), default=(0, ""))[1]


def near_of(key: OpKey) -> Near:
    """What of an op stays through optimization."""
    return key.file, key.line, key.primitive


def written_change(base: HloModule, head: HloModule, lines: LineMap) -> WrittenChange:
    """Ops of one program that the other does not have, by line. Linear in both programs."""
    mine, theirs = list(_ops(base, lines)), list(_ops(head, NO_LINES))
    counts = Counter(key for key, _, _ in mine), Counter(key for key, _, _ in theirs)
    gone, new = counts[0] - counts[1], counts[1] - counts[0]
    shapes = _without_shapes(gone) & _without_shapes(new)
    rows: Counter[tuple[str, Literal["new", "gone", "other shape"], str]] = Counter()
    for change, held in (("new", new), ("gone", gone)):
        rest = Counter(shapes)
        for key, count in held.items():
            plain = key.without_shape()
            reshaped = min(count, rest[plain])
            rest[plain] -= reshaped
            if reshaped and change == "new":
                rows[_place(key), "other shape", key.primitive] += reshaped
            if count > reshaped and key.file:
                rows[_place(key), change, key.primitive] += count - reshaped  # type: ignore[index]
    near: dict[Near, tuple[int, str]] = {}
    if new.total() + gone.total() <= MOST_CHANGED:
        for side, held in ((theirs, new), (mine, gone)):
            _spread(side, held, near)
    order = {"new": 0, "gone": 1, "other shape": 2}
    return WrittenChange(
        rows=tuple(
            Written(place=place, change=change, what=what, count=count)
            for (place, change, what), count in sorted(rows.items(), key=lambda row: (order[row[0][1]], row[0][0]))
            if place
        ),
        near=near,
    )


_Op = tuple[OpKey, str, Instruction]


def _ops(module: HloModule, lines: LineMap) -> Iterator[_Op]:
    for computation, one in module.instructions():
        if one.opcode not in _NOT_WRITTEN and one.op_name:
            yield op_key(one, lines), computation.name, one


def _without_shapes(held: Counter[OpKey]) -> Counter[OpKey]:
    found: Counter[OpKey] = Counter()
    for key, count in held.items():
        found[key.without_shape()] += count
    return found


def _place(key: OpKey) -> str:
    if key.file:
        return f"{key.file}:{key.line}" if key.line >= 0 else key.file
    return "/".join(key.path)


def _spread(ops: list[_Op], changed: Counter[OpKey], near: dict[Near, tuple[int, str]]) -> None:
    """From the ops that differ to those that they feed and that feed them."""
    keys = {(computation, one.name): key for key, computation, one in ops}
    beside: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for _, computation, one in ops:
        for operand in one.operands:
            beside[computation, one.name].append((computation, operand))
            beside[computation, operand].append((computation, one.name))
    for key, computation, one in ops:
        if not changed[key] or not key.file:
            continue
        place, seen, edge = _place(key), {(computation, one.name)}, [(computation, one.name)]
        for hops in range(HOPS + 1):
            for at in edge:
                if at in keys:
                    mark = near_of(keys[at])
                    near[mark] = min(near.get(mark, (hops, place)), (hops, place))
            edge = [other for at in edge for other in beside.get(at, ()) if other not in seen]
            seen.update(edge)
