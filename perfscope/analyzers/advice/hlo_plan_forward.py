"""What a loop's forward no longer writes where less is kept of its layers."""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.analyzers.advice.hlo_graph import Body
from perfscope.analyzers.advice.hlo_graph_edit import spliced
from perfscope.analyzers.advice.hlo_layer import Layer
from perfscope.analyzers.advice.hlo_reads import takes_buffers
from perfscope.analyzers.facts.hlo_flow import Flow
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction


def stack_writers(code: Computation, elements: Iterable[int]) -> list[str]:
    """Kernels of a loop's body whose results are written into these elements of its state."""
    found: dict[str, None] = {}
    for element in elements:
        writer = code.by_name[code.root.operands[element]]
        while writer.opcode == "bitcast":
            writer = code.by_name[writer.operands[0]]
        for operand in writer.operands:
            one = code.by_name[operand]
            while one.opcode in ("bitcast", "get-tuple-element") and one.operands:
                one = code.by_name[one.operands[0]]
            if one.opcode == "fusion":
                found[one.name] = None
    return list(found)


def within_readers(module: HloModule, flow: Flow, layer: Layer, forth: Body, name: str) -> None:
    """A kernel that was there to be stacked, and that its other readers can compute within themselves, is gone."""
    if name not in forth.nodes:
        return
    code = module.computations[forth.name]
    node, inside = forth.nodes[name], module.computations[code.by_name[name].called[0]]
    results = inside.root.operands if inside.root.opcode == "tuple" else (inside.root.name,)
    if len(results) != len(node.sizes):
        return  # a sort of several arrays: its readers need it in memory
    for result, size in zip(results, node.sizes, strict=True):
        made = layer.made(flow.numbers[inside.name, result])
        if size and any(layer.has_buffer(one) for one in made):
            return
    users = forth.users()
    readers: list[tuple[str, str]] = []
    views, waiting = [name], [name]
    while waiting:
        one = waiting.pop()
        for user in users[one]:
            if user != forth.root and forth.nodes[user].opcode in ("bitcast", "get-tuple-element"):
                views.append(user)
                waiting.append(user)
            else:
                readers.append((user, one))
    if not readers or any(_takes(module, code, user) for user, _ in readers):
        return
    for user, one in readers:
        forth.nodes[user] = spliced(forth.nodes[user], {one}, node.operands)
    for one in views:
        del forth.nodes[one]


def _takes(module: HloModule, code: Computation, user: str) -> bool:
    """Whether an instruction of the forward's body needs its operands as buffers."""
    one = code.by_name.get(user)
    return one is None or one.opcode in ("tuple", "while") or takes_buffers(module, one)


def comes_from_nothing(inside: Computation, one: Instruction) -> bool:
    """Computed from constants alone."""
    waiting, seen = [one], {one.name}
    while waiting:
        now = waiting.pop()
        if now.opcode in ("parameter", "while", "custom-call", "conditional", "rng", "rng-bit-generator"):
            return False
        for name in now.operands:
            if name not in seen:
                seen.add(name)
                waiting.append(inside.by_name[name])
    return True
