"""Two models of the same module, field by field."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from perfscope.analyzers.hlo.module import HloModule, Instruction


def differences(one: HloModule, other: HloModule, ignored: frozenset[str] = frozenset()) -> Iterator[str]:
    """What differs, with the instruction; computations may stand in another order, instructions may not."""
    for field in ("name", "entry", "is_scheduled", "platform"):
        if getattr(one, field) != getattr(other, field):
            yield f"{field}: {getattr(one, field)!r} {getattr(other, field)!r}"
    if one.computations.keys() != other.computations.keys():
        yield f"computations: {one.computations.keys() ^ other.computations.keys()}"
        return
    for name, computation in one.computations.items():
        mine, theirs = computation.instructions, other.computations[name].instructions
        if [part.name for part in mine] != [part.name for part in theirs]:
            yield f"{name}: instructions or their order"
            continue
        for left, right in zip(mine, theirs, strict=True):
            yield from _of_instruction(left, right, ignored)


def _of_instruction(left: Instruction, right: Instruction, ignored: frozenset[str]) -> Iterator[str]:
    for field in dataclasses.fields(Instruction):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if a != b and field.compare and field.name not in ignored:
            yield f"{left.name} ({left.opcode}) {field.name}: {a!r} {b!r}"
