"""Assembles a module from its computations and rejects an inconsistent one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from perfscope.analyzers.hlo.module import MAX_CALL_DEPTH, Computation, HloModule, Instruction
from perfscope.analyzers.hlo.views import SAME_ORDER, made_by

_WITH_OPERAND = (
    "bitcast bitcast-convert broadcast conditional convert copy copy-done copy-start get-tuple-element "
    "optimization-barrier reshape reverse slice transpose while"
)

LEAST_OPERANDS = dict.fromkeys(_WITH_OPERAND.split(), 1)
"""Minimum number of operands, for operations that are followed to their operands."""

LEAST_CALLED = {"call": 1, "fusion": 1, "while": 2}
"""Minimum number of called computations, for operations whose bodies are read."""

MOST_BYTES = 1 << 61
"""Maximum bytes of a value; sums of a few still fit 64 bits."""


# Trip counts of loops that count up to a constant, if the compiler did not record them (TPU never does).
# ``while (i < n)`` with ``i`` a part of the loop's tuple that begins with a constant, ``n`` a constant, and a body that
# adds a constant to ``i`` and changes it in no other way. All other trip counts remain unknown.


def with_trip_counts(computations: Mapping[str, Computation]) -> dict[str, Computation]:
    """Return the computations, every ``while`` with its trip count if it is recorded or can be derived."""
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
                msgspec.structs.replace(instruction, trip_count=counts[instruction.name])
                if instruction.name in counts
                else instruction
                for instruction in computation.instructions
            )
            result[name] = msgspec.structs.replace(
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
    """Return the instruction that makes a value, through copies."""
    return made_by(computation, name, SAME_ORDER)


def _constant(computation: Computation, name: str) -> int | None:
    return _plain(computation, name).value


def _part(computation: Computation, name: str) -> int | None:
    """Return which part of the computation's own parameter a value is; ``None`` if it is not one."""
    instruction = _plain(computation, name)
    if instruction.opcode != "get-tuple-element" or not instruction.operands:
        return None
    if _plain(computation, instruction.operands[0]).opcode != "parameter":
        return None
    return int(instruction.attributes["index"]) if instruction.attributes.get("index", "").isdecimal() else None


def _start(around: Computation, name: str, index: int) -> int | None:
    """Return the constant that a part of a loop's tuple begins with."""
    begin = _plain(around, name)
    if begin.opcode != "tuple" or index >= len(begin.operands):
        return None
    return _constant(around, begin.operands[index])


def _step(body: Computation, index: int) -> int | None:
    """Return the constant that a loop's body adds to a part of its tuple."""
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


def computation_of(name: str, instructions: Sequence[Instruction]) -> Computation:
    """Return a computation; ``ValueError`` if it is empty, has duplicate names or uses undefined names."""
    if not instructions:
        raise ValueError(f"computation {name[:80]!r} is empty")
    by_name: dict[str, Instruction] = {}
    for instruction in instructions:
        for operand in instruction.operands:
            if operand not in by_name:
                raise ValueError(
                    f"{instruction.name[:80]!r} in computation {name[:80]!r} uses {operand[:80]!r}, "
                    "which is not defined before it"
                )
        if len(instruction.operands) < LEAST_OPERANDS.get(instruction.opcode, 0):
            raise ValueError(f"{instruction.opcode[:80]} {instruction.name[:80]!r} lacks operands")
        if len(instruction.called) < LEAST_CALLED.get(instruction.opcode, 0):
            raise ValueError(f"{instruction.opcode[:80]} {instruction.name[:80]!r} calls too few computations")
        if instruction.shape.bytes > MOST_BYTES:
            raise ValueError(f"{instruction.name[:80]!r} is larger than any memory")
        if instruction.name in by_name:
            raise ValueError(f"computation {name[:80]!r} defines {instruction.name[:80]!r} twice")
        by_name[instruction.name] = instruction
    return Computation(name=name, instructions=tuple(instructions), by_name=by_name)


def linked(computations: Iterable[Computation]) -> dict[str, Computation]:
    """Return computations by name, loops with their trip counts.

    ``ValueError`` if a called computation is missing, or if calls are cyclic or too deep.
    """
    by_name: dict[str, Computation] = {}
    for computation in computations:
        if computation.name in by_name:
            raise ValueError(f"two computations are called {computation.name[:80]!r}")
        by_name[computation.name] = computation
    calls = {
        name: list(dict.fromkeys(called for instruction in computation.instructions for called in instruction.called))
        for name, computation in by_name.items()
    }
    for name, called in calls.items():
        missing = next((name for name in called if name not in by_name), None)
        if missing is not None:
            raise ValueError(f"computation {name[:80]!r} calls {missing[:80]!r}, which is not in the module")
    _bound_depth(calls)
    return with_trip_counts(by_name)


def callees_first(module: HloModule, follows: Callable[[Instruction], bool]) -> list[str]:
    """Return the computations reachable from the entry through instructions accepted by ``follows``, callees first.

    Readers reject modules with cyclic calls.
    """
    done: dict[str, None] = {}
    waiting = [(module.entry, False)]
    while waiting:
        name, left = waiting.pop()
        if left:
            done[name] = None
        elif name not in done:
            waiting.append((name, True))
            calls = (
                instruction.called for instruction in module.computations[name].instructions if follows(instruction)
            )
            waiting.extend((called, False) for names in calls for called in names if called not in done)
    return list(done)


def _bound_depth(calls: Mapping[str, Sequence[str]]) -> None:
    """Check the depth of the call graph, depth first and without recursion; every computation is finished once."""
    depth: dict[str, int] = {}
    for start in calls:
        if start in depth:
            continue
        path = [start]
        on_path = {start}
        waiting = [iter(calls[start])]
        while path:
            called = next(waiting[-1], None)
            if called is None:
                name = path.pop()
                waiting.pop()
                on_path.remove(name)
                depth[name] = 1 + max((depth[call] for call in calls[name]), default=0)
                if depth[name] > MAX_CALL_DEPTH:
                    raise ValueError(f"computations call one another more than {MAX_CALL_DEPTH} deep")
            elif called in on_path:
                raise ValueError(f"computation {called[:80]!r} calls itself")
            elif called not in depth:
                path.append(called)
                on_path.add(called)
                waiting.append(iter(calls[called]))
