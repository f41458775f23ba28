"""Puts a module together from its computations and refuses one that does not hang together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from perfscope.analyzers.hlo.cost.trip_counts import with_trip_counts
from perfscope.analyzers.hlo.module import MAX_CALL_DEPTH, Computation, HloModule, Instruction

_WITH_OPERAND = (
    "bitcast bitcast-convert broadcast conditional convert copy copy-done copy-start get-tuple-element "
    "optimization-barrier reshape reverse slice transpose while"
)
LEAST_OPERANDS = dict.fromkeys(_WITH_OPERAND.split(), 1)
"""Operands that an operation has at least: of those that are looked through to what they take."""
LEAST_CALLED = {"call": 1, "fusion": 1, "while": 2}
"""Computations that it calls at least: of those whose bodies are looked into."""


def computation_of(name: str, instructions: Sequence[Instruction]) -> Computation:
    """A computation; ``ValueError`` if it is empty, names something twice or uses what is not defined before."""
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
        if instruction.name in by_name:
            raise ValueError(f"computation {name[:80]!r} defines {instruction.name[:80]!r} twice")
        by_name[instruction.name] = instruction
    return Computation(name=name, instructions=tuple(instructions), by_name=by_name)


def linked(computations: Iterable[Computation]) -> dict[str, Computation]:
    """Computations by name, loops with their trip counts.

    ``ValueError`` if a called one is missing, or calls go in a circle or too deep.
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
    """Computations that the entry reaches through instructions that ``follows`` takes, each after all it calls.

    Readers refuse modules whose calls go in a circle.
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
    """Walk the call graph depth first with a stack of our own; every computation is finished once."""
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
