"""What XLA rather reads than computes a second time, and how a kernel comes to write it as well."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from perfscope.analyzers.advice.hlo_graph import Body, Node
from perfscope.analyzers.facts.hlo_flow import Flow

PLAIN = frozenset({"constant", "iota", "broadcast", "parameter", "tuple"})
"""Opcodes of what is there for nothing."""
_WORK = dict.fromkeys(("divide", "exponential", "log", "tanh", "rsqrt", "sqrt", "power", "sine", "cosine"), 10)
"""Instructions of a processor for an element, roughly, where it is more than one."""
_RIDGE = 20
"""Arithmetic of an H100 in the time that a byte takes from its memory: 67 TFLOP/s of float32 over 3.35 TB/s."""


def is_dear(flow: Flow, number: int, held: Callable[[int], bool]) -> bool:
    """Whether computing a value within its kernel, from what is ``held``, takes longer than reading it would."""
    one, inside = flow.values[number].instruction, flow.values[number].computation.name
    waiting, seen, work = [number], {number}, 0
    while waiting:
        value = flow.values[waiting.pop()]
        if value.instruction.opcode not in PLAIN and value.instruction.shape.elements == one.shape.elements:
            work += _WORK.get(value.instruction.opcode, 1)
        for operand in value.operands:
            if operand not in seen and flow.values[operand].computation.name == inside and not held(operand):
                seen.add(operand)
                waiting.append(operand)
    return work * one.shape.elements > _RIDGE * one.shape.bytes


def further_result(body: Body, kernel: str, name: str, size: int) -> str:
    """A kernel, or the part of a kernel's results of that name, gets one more result: its name."""
    node = body.nodes[kernel]
    if node.opcode == "get-tuple-element":
        node = body.nodes[node.operands[0]]
    if not node.is_tuple:
        node = replace(node, name=f"{kernel}.more", is_tuple=True)
        body.add(node)
        body.add(Node(name=kernel, opcode="get-tuple-element", operands=(node.name,), sizes=node.sizes, index=0))
    at = len(node.sizes)
    body.change(node.name, sizes=(*node.sizes, size))
    return body.add(Node(name=name, opcode="get-tuple-element", operands=(node.name,), sizes=(size,), index=at))
