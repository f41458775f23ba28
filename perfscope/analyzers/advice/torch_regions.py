"""Modules of a PyTorch step that could be checkpointed as a whole: repeated blocks, and single large modules.

A block is a member of a ``ModuleList`` or ``Sequential``: a number in its qualified name. Blocks under one container
that run the same ops are copies of one layer. Where containers are nested (stages of blocks) the level is taken at
which checkpointing everything would leave least in memory: the inputs of all blocks, and all of the largest one.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfscope.model.op_graph import GraphOp, OpGraph

SINGLE_SHARE = 0.05
"""Of all that the forward makes: a module that is no repeated block is a region if it makes as much. Checkpointing
smaller ones changes nothing that anyone would see."""

_NUMBERED = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One forward pass of a module."""

    module: str
    group: str
    """Of copies of one layer: the container with ``*`` for the number."""
    first: int
    last: int
    """Indices of its first op and behind its last one. Nothing of another module runs between."""


def module_calls(graph: OpGraph) -> tuple[Call, ...]:
    """The calls of the modules that are regions, in the order they run; a module that is called twice is there twice.

    Calls do not overlap. A module whose ops are interleaved with those of others outside of it has a call for each
    piece.
    """
    forward = [op for op in graph.ops if op.phase == "forward" and not op.recompute]
    made = {op.index: _made_bytes(graph, op) for op in forward}
    deepest = max((len(_NUMBERED.findall(op.module)) for op in forward), default=0)
    best: tuple[Call, ...] = ()
    least: float = float("inf")
    for level in range(1, deepest + 1):
        calls = _blocks(forward, level)
        if not calls:
            continue
        needed = _left_over(graph, calls, made)
        if needed < least:
            best, least = calls, needed
    return tuple(sorted((*best, *_singles(forward, best, made)), key=lambda call: call.first))


def inside(module: str, region: str) -> bool:
    """True if a module is another one or a part of it."""
    return module == region or module.startswith(region + ".")


def _made_bytes(graph: OpGraph, op: GraphOp) -> int:
    if op.view:
        return 0
    own = {graph.tensors[index].storage for index in op.inputs}
    return sum(graph.tensors[index].bytes for index in op.outputs if graph.tensors[index].storage not in own)


def _blocks(forward: Sequence[GraphOp], level: int) -> tuple[Call, ...]:
    """Calls of the modules whose name ends with the ``level``-th number in it, if there are copies among them."""
    pieces = _pieces(forward, {op.index: _prefix(op.module, level) for op in forward})
    signatures: dict[tuple[str, tuple[str, ...]], set[str]] = defaultdict(set)
    keys = []
    for module, ops in pieces:
        container = module.rpartition(".")[0]
        key = (container, tuple(op.name for op in ops if not op.view))
        signatures[key].add(module)
        keys.append(key)
    repeated = [key for key, modules in signatures.items() if len(modules) > 1 and key[1]]
    kinds: dict[str, int] = defaultdict(int)
    names = {}
    for key in repeated:
        kinds[key[0]] += 1
        order = "" if kinds[key[0]] == 1 else f" (kind {kinds[key[0]]})"
        names[key] = f"{key[0]}.*{order}"
    return tuple(
        Call(module=module, group=names[key], first=ops[0].index, last=ops[-1].index + 1)
        for (module, ops), key in zip(pieces, keys, strict=True)
        if key in names
    )


def _pieces(forward: Sequence[GraphOp], region: Mapping[int, str | None]) -> list[tuple[str, list[GraphOp]]]:
    """Stretches of forward ops of one region, in order."""
    pieces: list[tuple[str, list[GraphOp]]] = []
    current: str | None = None
    for op in forward:
        name = region[op.index]
        if name is not None and name == current:
            pieces[-1][1].append(op)
        elif name is not None:
            pieces.append((name, [op]))
        current = name
    return pieces


def _prefix(module: str, level: int) -> str | None:
    found = list(_NUMBERED.finditer(module))
    return module[: found[level - 1].end()] if len(found) >= level else None


def _left_over(graph: OpGraph, calls: Sequence[Call], made: Mapping[int, int]) -> int:
    """Bytes held if all the calls were checkpointed: what others make, the calls' inputs, the largest call."""
    inputs, largest, within = 0, 0, 0
    for call in calls:
        ops = graph.ops[call.first : call.last]
        own = {graph.tensors[index].storage for op in ops for index in op.outputs}
        read = {graph.tensors[index].storage: graph.tensors[index].bytes for op in ops for index in op.inputs}
        inputs += sum(size for storage, size in read.items() if storage not in own and storage not in graph.parameters)
        size = sum(made.get(op.index, 0) for op in ops)
        largest, within = max(largest, size), within + size
    return sum(made.values()) - within + inputs + largest


def _singles(forward: Sequence[GraphOp], blocks: Sequence[Call], made: Mapping[int, int]) -> list[Call]:
    """Outermost modules outside of the blocks that make ``SINGLE_SHARE`` of all by themselves."""
    taken = {index for call in blocks for index in range(call.first, call.last)}
    above = {prefix for call in blocks for prefix in _prefixes(call.module)}
    roots = {op.module.partition(".")[0] for op in forward if op.module}
    free = [op for op in forward if op.index not in taken]
    outermost = {
        op.index: next((prefix for prefix in _prefixes(op.module) if prefix not in above and prefix not in roots), None)
        for op in free
    }
    whole = sum(made.values())
    return [
        Call(module=module, group=module, first=ops[0].index, last=ops[-1].index + 1)
        for module, ops in _pieces(forward, {op.index: outermost.get(op.index) for op in forward})
        if sum(made[op.index] for op in ops) >= SINGLE_SHARE * whole and sum(not op.view for op in ops) > 1
    ]


def _prefixes(module: str) -> list[str]:
    """Of a qualified name all its beginnings, the shortest first, itself last."""
    parts = module.split(".") if module else []
    return [".".join(parts[: count + 1]) for count in range(len(parts))]
