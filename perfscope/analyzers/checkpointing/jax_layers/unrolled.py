"""The layers of a program that runs them one after another: scopes that differ by a number, forward and backward.

Frameworks give each layer a scope of its own (``block_3``, ``layers[3]``), and JAX marks the backward pass in the path
of every instruction. What the forward of a layer makes and its backward reads is what is kept for it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from perfscope.analyzers.checkpointing.jax_layers.layers import Kept, Layers, layer_loops, reached
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import Computation, Instruction
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.hlo.scope import Scope, scope_of

_NUMBERED = re.compile(r"(.*?)[_\-\[.]?(\d+)\]?", re.ASCII)
"""``block_3``, ``layers[3]``, ``h.3``, ``Block3``."""

MIN_LAYERS = 2
"""Scopes of one kind: a single numbered scope is a name."""

_BEFORE = 8
"""Instructions of a layer's backward before the first that reads what was kept: the product with its last weights.
What stands further in front is put there because it needs nothing (zeros)."""

Part = tuple[str, int | None]
"""An instruction and which part of its tuple."""


def layers_of(flow: Flow, schedule: Schedule) -> tuple[Layers, ...]:
    """Loops over layers, else layers with a scope each; a loop within such a layer (over time, blocks) is none."""
    single = single_layers(flow, schedule)
    loops = layer_loops(flow, schedule)
    outer = tuple(loop for loop in loops if not any(loop.path[: len(layer.scope)] == layer.scope for layer in single))
    return outer or single


def single_layers(flow: Flow, schedule: Schedule) -> tuple[Layers, ...]:
    """Layers of the entry with a scope each, in the order they run. Linear in the entry's instructions."""
    module = flow.module
    entry = module.entry_computation()
    scopes = _entry_scopes(entry)
    kinds: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for scope in scopes.values():
        path = _numbered(scope.path)
        if path is not None:
            kinds[_kind(path)].add(path)
    chosen = {path: kind for kind, paths in kinds.items() if len(paths) >= MIN_LAYERS for path in paths}
    readers = dict(_readers_of(entry))
    within, nested = reached(module, module.entry), reached(module, module.entry, loops_only=True)
    layers = []
    for path, kind in chosen.items():
        members = {name for name, scope in scopes.items() if scope.path[: len(path)] == path}
        forward = [schedule.positions[name] for name in members if scopes[name].phase == "forward"]
        backward = [schedule.positions[name] for name in members if scopes[name].phase != "forward"]
        if not forward or not backward:
            continue
        end = _handed_down(schedule, members, scopes, readers)
        kept, takers = _kept(flow, schedule, members, scopes, readers, end)
        again = any(scopes[name].phase == "recompute" for name in members)
        if kept or again:  # a checkpointed layer may keep its input alone, which others read as well
            first = min((kept_value.reads[0] for kept_value in kept), default=min(backward))
            handed_in = [position for position in backward if first - position <= _BEFORE and position <= first]
            begin = min(handed_in, default=first)
            layers.append(
                Layers(
                    name="/".join(path),
                    group=kind,
                    count=1,
                    forward=(
                        min(forward),
                        max([position for position in forward if position < begin], default=min(forward)) + 1,
                    ),
                    backward=(begin, end + 1),
                    kept=kept,
                    body=entry,
                    within=within,
                    nested=nested,
                    takers=takers,
                    scope=path,
                )
            )
    return tuple(sorted(layers, key=lambda layer: layer.forward))


def _entry_scopes(entry: Computation) -> dict[str, Scope]:
    """Where in the user's program instructions come from, as far as they or what they belong to tell it."""
    scopes: dict[str, Scope] = {}
    for instruction in entry.instructions:
        if instruction.op_name:
            scopes[instruction.name] = scope_of(instruction.op_name)
        elif (
            instruction.operands
            and instruction.operands[0] in scopes
            and instruction.opcode in ("copy", "bitcast", "get-tuple-element")
        ):
            scopes[instruction.name] = scopes[instruction.operands[0]]  # XLA's own copies carry no path
        if instruction.opcode == "while" and instruction.name in scopes:
            scopes.setdefault(instruction.operands[0], scopes[instruction.name])  # what a loop begins with
    return scopes


def _readers_of(body: Computation) -> Iterator[tuple[Part, list[Instruction]]]:
    """Who reads each value of a computation, behind views and parts of tuples; the root reads what it returns."""
    views: dict[str, Part] = {}
    readers: dict[Part, list[Instruction]] = defaultdict(list)
    for instruction in body.instructions:
        if instruction.opcode == "get-tuple-element" and body.by_name[instruction.operands[0]].opcode != "parameter":
            views[instruction.name] = (instruction.operands[0], int(instruction.attributes["index"]))
            continue
        if instruction.opcode == "bitcast":
            views[instruction.name] = views.get(instruction.operands[0], (instruction.operands[0], None))
            continue
        for name in dict.fromkeys(instruction.operands):
            readers[views.get(name, (name, None))].append(instruction)
    yield from readers.items()


def _part_number(flow: Flow, body: Computation, part: Part) -> int | None:
    """The number in ``Flow`` of a value of a computation; ``None`` of a part that nobody takes out of its tuple."""
    name, index = part
    if index is None:
        return flow.numbers[body.name, name]
    instruction = body.by_name[name]
    if instruction.opcode != "fusion":
        return next(
            (
                flow.numbers[body.name, element.name]
                for element in body.instructions
                if element.opcode == "get-tuple-element"
                and element.operands == (name,)
                and element.attributes.get("index") == str(index)
            ),
            None,
        )
    root = flow.module.computations[instruction.called[0]].root
    return flow.numbers[instruction.called[0], root.operands[index]] if root.opcode == "tuple" else None


def _numbered(path: tuple[str, ...]) -> tuple[str, ...] | None:
    """The path up to its first numbered segment."""
    for index, segment in enumerate(path):
        if _NUMBERED.fullmatch(segment):
            return path[: index + 1]
    return None


def _kind(path: tuple[str, ...]) -> str:
    match = _NUMBERED.fullmatch(path[-1])
    return "/".join((*path[:-1], match[1] if match is not None else path[-1]))


def _kept(
    flow: Flow,
    schedule: Schedule,
    members: set[str],
    scopes: Mapping[str, Scope],
    readers: Mapping[Part, list[Instruction]],
    end: int,
) -> tuple[tuple[Kept, ...], frozenset[str]]:
    """What only the backward of the layer reads of its forward, who in the backward does, and who of them late."""
    entry = flow.module.entry_computation()
    kept, takers = [], set()
    for (name, index), users in readers.items():
        if name not in members or scopes[name].phase != "forward":
            continue
        late = [user for user in users if _is_backward(user, scopes)]
        takers |= {instruction.name for instruction in late}
        if not late or not all(instruction.name in members for instruction in late):
            continue
        number = _part_number(flow, entry, (name, index))
        instruction = entry.by_name[name]
        if number is None:
            continue
        kept.append(
            Kept(
                number=number,
                bytes=(instruction.shape if index is None else instruction.shape.parts[index]).bytes,
                makers=frozenset({name if index is None else f"{name}{{{index}}}"}),
                reads=(
                    min(end, *(schedule.begins[user.name] for user in late)),
                    min(end, max(schedule.positions[user.name] for user in late)),
                ),
            )
        )
    return tuple(kept), frozenset(takers)


def _handed_down(
    schedule: Schedule,
    members: set[str],
    scopes: Mapping[str, Scope],
    readers: Mapping[Part, list[Instruction]],
) -> int:
    """Where the layer's backward has made what the backward behind it goes on with; what else it does can wait.

    XLA puts gradients of weights off where their inputs are in memory anyway, and not where they are made again.
    """
    own = [name for name in members if scopes[name].phase != "forward"]
    handed = {
        part[0]
        for part, users in readers.items()
        if part[0] in own and any(_is_backward(user, scopes) and user.name not in members for user in users)
    }
    return max(schedule.positions[name] for name in handed or own)


def _is_backward(instruction: Instruction, scopes: Mapping[str, Scope]) -> bool:
    return instruction.name in scopes and scopes[instruction.name].phase != "forward"
