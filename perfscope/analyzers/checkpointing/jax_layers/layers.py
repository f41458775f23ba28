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

from perfscope.analyzers.checkpointing.jax_layers.reads import only_moves, takes_buffers, takes_part
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.hlo.scope import scope_of

_MOST_STEPS = 64
"""From an operand of a loop to the loop that made it: casts, views and copies in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """An instruction of the backward that reads what the forward kept. Positions are those of ``Schedule``."""

    first: int
    last: int
    into_product: bool
    """It is, or holds, a matrix product or a loop: it takes the value as a buffer and not element by element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What the forward of a layer hands to its backward."""

    number: int
    """In ``Flow``: what is written."""
    bytes: int
    """Of all layers that it holds together."""
    makers: frozenset[str]
    """Instructions that the block of memory may be named after, with the part of their tuple where it matters."""
    copies: frozenset[str]
    """Instructions of the backward that only take a layer's part out of it, or lay it out in another way."""
    readers: tuple[Reader, ...]


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


def layer_loops(module: HloModule, flow: Flow, schedule: Schedule) -> tuple[Layers, ...]:
    """Pairs of loops of the entry that hand stacks from one to the other, in program order. Linear in the module."""
    entry = module.entry_computation()
    loops = [one for one in entry.instructions if one.opcode == "while" and len(one.called) == 2]
    found = []
    for at, forward in enumerate(loops):
        stacks = dict(_stacks(module, flow, forward))
        if not _hands_on(module.computations[forward.called[1]], stacks):
            continue
        for backward in loops[at + 1 :] if stacks else ():
            if backward.trip_count != forward.trip_count or not forward.trip_count:
                continue
            kept = _handed_on(module, flow, schedule, (forward, backward), stacks)
            if kept:
                found.append(_layers(module, schedule, forward, backward, kept))
                break
    return tuple(found)


def _hands_on(body: Computation, stacks: Collection[int]) -> bool:
    """Whether a turn gives the next one an array besides the stacks: what a layer gives to the one behind it."""
    if body.root.opcode != "tuple":
        return False
    for element, name in enumerate(body.root.operands):
        one = body.by_name[name]
        source = body.by_name[one.operands[0]] if one.opcode == "get-tuple-element" else one
        same = source.opcode == "parameter" and one.attributes.get("index") == str(element)
        if element not in stacks and one.shape.dims and not same:
            return True
    return False


def backward_body(module: HloModule, schedule: Schedule, layers: Layers) -> str:
    """The computation that runs the backward of layers: the body of their loop, else the entry."""
    for one in module.entry_computation().instructions:
        if one.opcode == "while" and schedule.positions[one.name] + 1 == layers.backward[1]:
            return one.called[-1]
    return module.entry


def reached(module: HloModule, name: str, loops_only: bool = False) -> frozenset[str]:
    """A computation and all it calls; with ``loops_only`` those that run in loops in it, without itself."""
    found: set[str] = set()
    waiting = [(name, False)]
    seen: set[tuple[str, bool]] = set()
    while waiting:
        one, looped = waiting.pop()
        if (one, looped) in seen:
            continue
        seen.add((one, looped))
        if looped or not loops_only:
            found.add(one)
        for instruction in module.computations[one].instructions:
            inner = looped or instruction.opcode == "while"
            waiting += [(called, inner) for called in instruction.called]
    return frozenset(found)


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
        takers=frozenset(name for one in kept for name in one.makers),
        path=scope_of(forward.op_name).path if forward.op_name else (),
    )


def _label(loop: Instruction) -> str:
    """``layers of mlp at model.py:73`` for a loop in a scope of the user's."""
    path = scope_of(loop.op_name).path if loop.op_name else ()
    line = "" if loop.file is None or loop.line is None else f"{PurePosixPath(loop.file).name}:{loop.line}"
    if path:
        return f"layers of {'/'.join(path)}" + (f" at {line}" if line else "")
    return f"layers of the scan at {line}" if line else f"layers of {loop.name}"


def _stacks(module: HloModule, flow: Flow, loop: Instruction) -> Iterator[tuple[int, tuple[int, frozenset[str]]]]:
    """Elements of a loop's state that a layer writes its part into: what is written, and who makes the block."""
    body = module.computations[loop.called[1]]
    entry = module.entry_computation()
    start = entry.by_name[loop.operands[0]]
    if body.root.opcode != "tuple":
        return
    for element, name in enumerate(body.root.operands):
        writer = body.by_name[name]
        while writer.opcode == "bitcast":
            writer = body.by_name[writer.operands[0]]
        update = next(
            (
                one
                for one in _written(flow, flow.numbers[body.name, name])
                if flow.opcode(one) == "dynamic-update-slice"
            ),
            None,
        )
        if update is None or not writer.shape.elements or element >= len(start.operands):
            continue
        first = entry.by_name[start.operands[element]]
        makers = {writer.name, first.name}
        while first.opcode in ("bitcast", "get-tuple-element", "copy") and first.operands:
            first = entry.by_name[first.operands[0]]
            makers.add(first.name)
        yield element, (flow.values[update].operands[1], frozenset(makers))


def _written(flow: Flow, number: int) -> Iterator[int]:
    """What computes a value, behind other layouts of it."""
    for one in flow.back([number]):
        for _ in range(_MOST_STEPS):
            if flow.opcode(one) not in ("bitcast", "transpose", "reshape", "copy"):
                break
            one = next(flow.back(flow.values[one].operands[:1]), one)
        yield one


def _handed_on(
    module: HloModule,
    flow: Flow,
    schedule: Schedule,
    loops: tuple[Instruction, Instruction],
    stacks: dict[int, tuple[int, frozenset[str]]],
) -> tuple[Kept, ...]:
    """Stacks of the first loop that the second one reads."""
    forward, backward = loops
    entry = module.entry_computation()
    start = entry.by_name[backward.operands[0]]
    body = module.computations[backward.called[1]]
    found = []
    for element, name in enumerate(start.operands):
        source, copies = _element_of(entry, flow, name, forward)
        if source not in stacks:
            continue
        number, makers = stacks[source]
        readers, slices = _readers(module, schedule, body, element)
        if readers:
            found.append(
                Kept(
                    number=number,
                    bytes=forward.shape.parts[source].bytes,
                    makers=makers,
                    copies=copies | slices,
                    readers=tuple(readers),
                )
            )
    return tuple(found)


def _element_of(entry: Computation, flow: Flow, name: str, loop: Instruction) -> tuple[int | None, frozenset[str]]:
    """Which element of a loop's result a value is, with the copies of it on the way."""
    copies: set[str] = set()
    for _ in range(_MOST_STEPS):
        one = entry.by_name[name]
        if one.opcode == "get-tuple-element":
            if one.operands[0] == loop.name:
                return int(one.attributes["index"]), frozenset(copies)
            return None, frozenset()
        if one.opcode == "bitcast":
            name = one.operands[0]
        elif len(one.operands) == 1 and only_moves(flow.module, one):
            copies.add(one.name)
            name = one.operands[0]
        else:
            return None, frozenset()
    return None, frozenset()


def _readers(
    module: HloModule, schedule: Schedule, body: Computation, element: int
) -> tuple[list[Reader], frozenset[str]]:
    """Who reads an element of the loop's state, behind those that only take the layer's part of it."""
    views = {
        one.name
        for one in body.instructions
        if one.opcode == "get-tuple-element"
        and one.attributes.get("index") == str(element)
        and body.by_name[one.operands[0]].opcode == "parameter"
    }
    slices: set[str] = set()
    loops = {one.operands[0]: one for one in body.instructions if one.opcode == "while"}  # by what they begin with
    found = []
    for one in body.instructions:
        if views.isdisjoint(one.operands) or one.name in views or one is body.root:
            continue
        if one.opcode == "bitcast":
            views.add(one.name)
        elif takes_part(module, one):
            views.add(one.name)
            slices.add(one.name)
        else:
            user = loops.get(one.name, one)
            found.append(
                Reader(
                    first=min(schedule.begins[one.name], schedule.begins[user.name]),
                    last=schedule.positions[user.name],
                    into_product=takes_buffers(module, user),
                )
            )
    return found, frozenset(slices)
