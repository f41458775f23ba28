"""Trip counts of loops that count up to a constant, where the compiler did not write them down (TPU never does).

``while (i < n)`` with ``i`` a part of the loop's tuple that begins with a constant, ``n`` a constant, and a body
that adds a constant to ``i`` and to nothing else of it. Anything else stays unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from perfscope.analyzers.hlo.module import Computation, Instruction
from perfscope.analyzers.hlo.views import SAME_ORDER, made_by


def with_trip_counts(computations: Mapping[str, Computation]) -> dict[str, Computation]:
    """The computations, every ``while`` with its trip count where it is written or can be told."""
    result = dict(computations)
    for name, computation in computations.items():
        counts = {
            instruction.name: count
            for instruction in computation.instructions
            if instruction.opcode == "while" and instruction.trip_count is None
            if (count := _trip_count(computations, computation, instruction)) is not None
        }
        if counts:
            instructions = tuple(
                dataclasses.replace(instruction, trip_count=counts[instruction.name])
                if instruction.name in counts
                else instruction
                for instruction in computation.instructions
            )
            result[name] = dataclasses.replace(
                computation,
                instructions=instructions,
                by_name={instruction.name: instruction for instruction in instructions},
            )
    return result


def _trip_count(computations: Mapping[str, Computation], around: Computation, loop: Instruction) -> int | None:
    if len(loop.called) != 2 or not loop.operands:
        return None
    condition, body = (computations[name] for name in loop.called)
    test = condition.root
    if test.opcode != "compare" or test.attributes.get("direction") not in ("LT", "LE") or len(test.operands) != 2:
        return None
    index = _part(condition, test.operands[0])
    end = _constant(condition, test.operands[1])
    if index is None or end is None:
        return None
    start = _start(around, loop.operands[0], index)
    step = _step(body, index)
    if start is None or step is None or step < 1:
        return None
    return max(0, -((start - end - (test.attributes["direction"] == "LE")) // step))


def _plain(computation: Computation, name: str) -> Instruction:
    """The instruction a value comes from, behind copies of it."""
    return made_by(computation, name, SAME_ORDER)


def _constant(computation: Computation, name: str) -> int | None:
    return _plain(computation, name).value


def _part(computation: Computation, name: str) -> int | None:
    """Which part of the computation's own parameter a value is; ``None`` if it is none."""
    instruction = _plain(computation, name)
    if instruction.opcode != "get-tuple-element" or not instruction.operands:
        return None
    if _plain(computation, instruction.operands[0]).opcode != "parameter":
        return None
    return int(instruction.attributes["index"]) if instruction.attributes.get("index", "").isdecimal() else None


def _start(around: Computation, name: str, index: int) -> int | None:
    """The constant that a part of a loop's tuple begins with."""
    begin = _plain(around, name)
    if begin.opcode != "tuple" or index >= len(begin.operands):
        return None
    return _constant(around, begin.operands[index])


def _step(body: Computation, index: int) -> int | None:
    """The constant that a loop's body adds to a part of its tuple."""
    root = body.root
    if root.opcode != "tuple" or index >= len(root.operands):
        return None
    added = _plain(body, root.operands[index])
    if added.opcode != "add" or len(added.operands) != 2:
        return None
    for counter, step in (added.operands, added.operands[::-1]):
        if _part(body, counter) == index:
            return _constant(body, step)
    return None
