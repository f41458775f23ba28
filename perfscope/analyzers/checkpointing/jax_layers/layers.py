"""The layers of a compiled training step: which loop runs them forward, which backward, and what goes between the two.

``jax.lax.scan`` over layers becomes two loops. What the backward needs of a layer is written by the forward loop into
arrays with a leading axis of layers (stacks), and the backward loop reads it back a layer at a time. A loop that hands
nothing else from one turn to the next has no layers: on TPU XLA computes what does not depend on the layers ahead of
them (the masks of blocks) in such a loop, and theirs reads it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.hlo.scope import scope_of
from perfscope.analyzers.hlo.views import REPEATED, SAME_BUFFER, SAME_ELEMENTS, made_by, path

_MOST_STEPS = 64
"""From an operand of a loop to the loop that made it: casts, views and copies in between."""


STACK_TRAFFIC = 4
"""Times that a value goes through memory for being kept by a loop over layers, whose stacks are filled, written to and
read back by kernels of their own: 2.8 to 5.7 in programs of the workloads compiled for an H100."""

_COPIES = REPEATED | {"slice"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the forward of a layer hands to its backward."""

    number: int
    """In ``Flow``: what is written."""
    bytes: int
    """Of all layers that it holds together."""
    makers: frozenset[str]
    """Instructions that the block of memory may be named after, with the part of their tuple where it matters."""
    reads: tuple[int, int]
    """Positions of ``Schedule`` at which the backward of a layer reads it first and last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Layers that run alike, in one loop (then all have one policy), or a single one."""

    name: str
    group: str
    """Equal for layers that differ by their number only."""
    count: int
    """Layers; 1 of a single one."""
    forward: tuple[int, int]
    """Positions, half open."""
    backward: tuple[int, int]
    kept: tuple[Kept, ...]
    body: Computation
    """Of the forward."""
    within: frozenset[str]
    """Computations of the forward: the body and what it calls."""
    nested: frozenset[str]
    """Those of them that run in loops inside the body."""
    takers: frozenset[str]
    """Instructions that read what is kept only to keep it, or to use it in the backward: gone where it is not kept."""
    scope: tuple[str, ...] = ()
    """Of a single layer, the path that its instructions begin with; empty of a loop."""
    path: tuple[str, ...] = ()
    """Of a loop, the scope that it is in."""


def layer_loops(flow: Flow, schedule: Schedule) -> tuple[Layers, ...]:
    """Pairs of loops of the entry that hand stacks from one to the other, in program order. Linear in the module."""
    module = flow.module
    entry = module.entry_computation()
    loops = [
        instruction
        for instruction in entry.instructions
        if instruction.opcode == "while" and len(instruction.called) == 2
    ]
    layers = []
    for index, forward in enumerate(loops):
        stacks = dict(_stacks(flow, forward))
        if not _hands_on(module.computations[forward.called[1]], stacks):
            continue
        for backward in loops[index + 1 :] if stacks else ():
            if backward.trip_count != forward.trip_count or not forward.trip_count:
                continue
            kept = _handed_on(flow, schedule, (forward, backward), stacks)
            if kept:
                layers.append(_layers(module, schedule, forward, backward, kept))
                break
    return tuple(layers)


def _hands_on(body: Computation, stacks: Collection[int]) -> bool:
    """Whether a turn gives the next one an array besides the stacks: what a layer gives to the one behind it."""
    if body.root.opcode != "tuple":
        return False
    for element, name in enumerate(body.root.operands):
        source, part = list(path(body, name))[-1]
        same = source.opcode == "parameter" and part == (element,)
        if element not in stacks and body.by_name[name].shape.dims and not same:
            return True
    return False


def backward_body(module: HloModule, schedule: Schedule, layers: Layers) -> str:
    """The computation that runs the backward of layers: the body of their loop, else the entry."""
    for instruction in module.entry_computation().instructions:
        if instruction.opcode == "while" and schedule.positions[instruction.name] + 1 == layers.backward[1]:
            return instruction.called[-1]
    return module.entry


def reached(module: HloModule, name: str, loops_only: bool = False) -> frozenset[str]:
    """A computation and all it calls; with ``loops_only`` those that run in loops in it, without itself."""
    names: set[str] = set()
    waiting = [(name, False)]
    seen: set[tuple[str, bool]] = set()
    while waiting:
        one, looped = waiting.pop()
        if (one, looped) in seen:
            continue
        seen.add((one, looped))
        if looped or not loops_only:
            names.add(one)
        for instruction in module.computations[one].instructions:
            inner = looped or instruction.opcode == "while"
            waiting += [(called, inner) for called in instruction.called]
    return frozenset(names)


def _layers(
    module: HloModule, schedule: Schedule, forward: Instruction, backward: Instruction, kept: tuple[Kept, ...]
) -> Layers:
    return Layers(
        name=_label(forward),
        group=_label(forward),
        count=forward.trip_count or 1,
        forward=(schedule.begins[forward.name], schedule.positions[forward.name] + 1),
        backward=(schedule.begins[backward.name], schedule.positions[backward.name] + 1),
        kept=kept,
        body=module.computations[forward.called[1]],
        within=reached(module, forward.called[1]),
        nested=reached(module, forward.called[1], loops_only=True),
        takers=frozenset(name for kept_value in kept for name in kept_value.makers),
        path=scope_of(forward.op_name).path if forward.op_name else (),
    )


def _label(loop: Instruction) -> str:
    """``layers of mlp at model.py:73`` for a loop in a scope of the user's."""
    path = scope_of(loop.op_name).path if loop.op_name else ()
    line = "" if loop.file is None or loop.line is None else f"{PurePosixPath(loop.file).name}:{loop.line}"
    if path:
        return f"layers of {'/'.join(path)}" + (f" at {line}" if line else "")
    return f"layers of the scan at {line}" if line else f"layers of {loop.name}"


def _stacks(flow: Flow, loop: Instruction) -> Iterator[tuple[int, tuple[int, frozenset[str]]]]:
    """Elements of a loop's state that a layer writes its part into: what is written, and who makes the block."""
    body = flow.module.computations[loop.called[1]]
    entry = flow.module.entry_computation()
    start = entry.by_name[loop.operands[0]]
    if body.root.opcode != "tuple":
        return
    for element, name in enumerate(body.root.operands):
        writer = made_by(body, name, ("bitcast",))
        update = next(
            (
                number
                for number in _written(flow, flow.numbers[body.name, name])
                if flow.opcode(number) == "dynamic-update-slice"
            ),
            None,
        )
        if update is None or not writer.shape.elements or element >= len(start.operands):
            continue
        begins = path(entry, start.operands[element], SAME_BUFFER | {"copy"})
        yield element, (flow.values[update].operands[1], frozenset({writer.name, *(one.name for one, _ in begins)}))


def _written(flow: Flow, number: int) -> Iterator[int]:
    """What computes a value, behind other layouts of it."""
    for one in flow.back([number]):
        for _ in range(_MOST_STEPS):
            if flow.opcode(one) not in SAME_ELEMENTS:
                break
            one = next(flow.back(flow.values[one].operands[:1]), one)
        yield one


def _handed_on(
    flow: Flow,
    schedule: Schedule,
    loops: tuple[Instruction, Instruction],
    stacks: dict[int, tuple[int, frozenset[str]]],
) -> tuple[Kept, ...]:
    """Stacks of the first loop that the second one reads."""
    forward, backward = loops
    entry = flow.module.entry_computation()
    start = entry.by_name[backward.operands[0]]
    body = flow.module.computations[backward.called[1]]
    kept = []
    for element, name in enumerate(start.operands):
        source = _element_of(entry, flow, name, forward)
        if source not in stacks:
            continue
        number, makers = stacks[source]
        reads = _reads(flow.module, schedule, body, element)
        if reads is not None:
            size = forward.shape.parts[source].bytes
            kept.append(Kept(number=number, bytes=size, makers=makers, reads=reads))
    return tuple(kept)


def _element_of(entry: Computation, flow: Flow, name: str, loop: Instruction) -> int | None:
    """Which element of a loop's result a value is, behind copies and other layouts."""
    for _ in range(_MOST_STEPS):
        instruction = entry.by_name[name]
        if instruction.opcode == "get-tuple-element":
            return int(instruction.attributes["index"]) if instruction.operands[0] == loop.name else None
        if len(instruction.operands) != 1 or not _only_moves(flow.module, instruction):
            return None
        name = instruction.operands[0]
    return None


def _only_moves(module: HloModule, instruction: Instruction, further: tuple[str, ...] = ()) -> bool:
    """Whether an instruction gives the same numbers in another order, or a part of them with ``further`` opcodes.

    Arithmetic on single numbers, such as the index of a layer, does not count.
    """
    if instruction.opcode != "fusion":
        return instruction.opcode in _COPIES or instruction.opcode in further
    body = module.computations[instruction.called[0]].instructions
    return all(part.opcode in _COPIES | {"parameter", "tuple", *further} or not part.shape.dims for part in body)


def _reads(module: HloModule, schedule: Schedule, body: Computation, element: int) -> tuple[int, int] | None:
    """Where an element of the loop's state is read first and last, behind what only takes the layer's part of it."""
    views = {
        instruction.name
        for instruction in body.instructions
        if instruction.opcode == "get-tuple-element"
        and instruction.attributes.get("index") == str(element)
        and body.by_name[instruction.operands[0]].opcode == "parameter"
    }
    loops = {
        instruction.operands[0]: instruction for instruction in body.instructions if instruction.opcode == "while"
    }  # by what they begin with
    positions = []
    for instruction in body.instructions:
        if views.isdisjoint(instruction.operands) or instruction.name in views or instruction is body.root:
            continue
        if _only_moves(module, instruction, ("dynamic-slice",)):
            views.add(instruction.name)
        else:
            user = loops.get(instruction.name, instruction)
            positions += [schedule.begins[instruction.name], schedule.begins[user.name], schedule.positions[user.name]]
    return (min(positions), max(positions)) if positions else None
