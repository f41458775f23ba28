"""A compiled program as its kernels and what they read and write: what XLA's memory schedulers see, and can be edited.

Kernels are whole (a fusion is one); results are told apart by part of a tuple. Two facts about memory belong to a
kernel: which operand it updates in place, and which it may be written onto (``hlo_sharing.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from perfscope.analyzers.checkpointing.xla_model.sharing import Slots, sharing_of
from perfscope.analyzers.hlo.module import HloModule, Instruction

VIEWS = frozenset({"bitcast", "get-tuple-element", "tuple"})
"""Opcodes that take no memory of their own beside a tuple's table."""
HELD = frozenset({"parameter", "constant"})
"""Opcodes of what is there for the whole run: the list scheduler counts neither."""
NOTHING = "void"
"""The instruction of no bytes that stands where an element of a loop's state was taken out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One instruction."""

    name: str
    opcode: str
    """XLA's; ``kernel`` of what a plan adds."""
    operands: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    """Instructions it must follow without reading them."""
    sizes: tuple[int, ...]
    """Bytes of the parts of its result; one of an array."""
    is_tuple: bool = False
    index: int = -1
    """Of a ``get-tuple-element``."""
    body: str = ""
    """What a ``while`` or ``call`` runs."""
    updates: Slots = ()
    """Part of the result and slot of the operand it is: updated in place."""
    reuses: Slots = ()
    """Part of the result and slot of an operand it may be written onto."""
    is_scalar: bool = False
    number: int = -1
    """Of a parameter."""
    like: str = ""
    """Of what a plan adds: the instruction of the program that does the same work."""

    @property
    def bytes(self) -> int:
        """Of all parts together."""
        return sum(self.sizes)


@dataclass(slots=True, kw_only=True)
class Body:
    """A computation that runs its instructions one after another."""

    name: str
    nodes: dict[str, Node]
    root: str

    def add(self, node: Node) -> str:
        """Takes an instruction in, and gives its name."""
        self.nodes[node.name] = node
        return node.name

    def change(self, name: str, **fields: Any) -> Node:
        """An instruction with other fields."""
        self.nodes[name] = replace(self.nodes[name], **fields)
        return self.nodes[name]

    def users(self) -> dict[str, list[str]]:
        """Who reads each instruction, each once."""
        found: dict[str, list[str]] = {name: [] for name in self.nodes}
        for node in self.nodes.values():
            for operand in dict.fromkeys(node.operands):
                found[operand].append(node.name)
        return found

    def parameter(self) -> str:
        """Of a loop's body: its state."""
        return next(node.name for node in self.nodes.values() if node.opcode == "parameter")

    def behind(self, name: str, through: Iterable[str] = ("bitcast",)) -> str:
        """What an instruction is a view of."""
        while self.nodes[name].opcode in through and self.nodes[name].operands:
            name = self.nodes[name].operands[0]
        return name

    def invariants(self) -> tuple[bool, ...]:
        """Of a loop's body: which elements of the state it hands on as they are."""
        state = self.parameter()
        found = []
        for at, operand in enumerate(self.nodes[self.root].operands):
            node = self.nodes[self.behind(operand)]
            found.append(node.opcode == "get-tuple-element" and node.operands == (state,) and node.index == at)
        return tuple(found)


@dataclass(slots=True, kw_only=True)
class Graph:
    """All computations that run."""

    bodies: dict[str, Body]
    entry: str
    donated: dict[int, int] = field(default_factory=dict)
    """Element of the result, and the parameter whose memory it takes."""

    @property
    def main(self) -> Body:
        """The entry."""
        return self.bodies[self.entry]

    def clone(self, name: str, ending: str) -> str:
        """The name of a copy of a computation, and of what it runs."""
        body = self.bodies[name]
        new = f"{name}{ending}"
        while new in self.bodies:
            new += "'"
        copy = Body(name=new, nodes={}, root=body.root)
        self.bodies[new] = copy
        for key, node in body.nodes.items():
            copy.nodes[key] = replace(node, body=self.clone(node.body, ending)) if node.body else node
        return new


def graph_of(module: HloModule) -> Graph:
    """The graph of a module. Linear in the instructions that run and in those of their fusions."""
    bodies: dict[str, Body] = {}
    waiting = [module.entry]
    while waiting:
        name = waiting.pop()
        if name in bodies:
            continue
        computation = module.computations[name]
        nodes = {one.name: _node(module, one) for one in computation.instructions}
        bodies[name] = Body(name=name, nodes=nodes, root=computation.root.name)
        waiting += [node.body for node in nodes.values() if node.body]
    return Graph(
        bodies=bodies,
        entry=module.entry,
        donated={one.output[0] if one.output else 0: one.parameter for one in module.aliases},
    )


def _node(module: HloModule, one: Instruction) -> Node:
    updates, reuses = sharing_of(module, one)
    is_tuple = one.shape.dtype == "tuple"
    before = one.attributes.get("control-predecessors", "").strip("{}")
    return Node(
        name=one.name,
        opcode=one.opcode,
        operands=one.operands,
        after=tuple(name.strip().lstrip("%") for name in before.split(",") if name.strip()),
        sizes=tuple(part.bytes for part in one.shape.parts) if is_tuple else (one.shape.bytes,),
        is_tuple=is_tuple,
        index=int(one.attributes.get("index", "-1")) if one.opcode == "get-tuple-element" else -1,
        body=one.called[-1] if one.opcode in ("while", "call") and one.called else "",
        updates=updates,
        reuses=reuses,
        is_scalar=not is_tuple and one.shape.elements == 1,
        number=-1 if one.parameter_number is None else one.parameter_number,
    )
