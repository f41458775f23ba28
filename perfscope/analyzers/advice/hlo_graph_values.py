"""The values of a program's graph, and which of them lie in one buffer: XLA's dataflow and alias analysis.

A loop's state is one buffer an element: what goes in, what the body sees, what it returns and what comes out. An
element that the body hands on as it is stays the value that went in.
"""

from __future__ import annotations

from collections.abc import Sequence

from perfscope.analyzers.advice.hlo_graph import HELD, Body, Graph, Node
from perfscope.analyzers.advice.hlo_orders import post_order

Part = frozenset[int]
"""Values that one part of a result may be."""
POINTER = 8
"""Bytes of an element of a tuple's table on a GPU."""
_BEGINS = frozenset({"all-gather-start", "collective-permute-start"})
"""Beginnings of collectives: what they read, and then what they make."""
_ENDS = frozenset({"all-gather-done", "all-reduce-done", "collective-permute-done"})
"""Their ends give what was made as they began. (Of several arrays the parts are not told apart: they count twice for
the moment of the end.)"""


class Values:
    """All of a graph. Linear in its instructions and the parts of their results."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sizes: list[int] = []
        self.makers: list[tuple[str, str]] = []
        """Computation and instruction."""
        self.held: list[bool] = []
        """A parameter or constant made it."""
        self.parts: dict[tuple[str, str], list[Part]] = {}
        self.made: dict[tuple[str, str], list[int]] = {}
        """What an instruction makes: its parts in order, then the table of its tuple."""
        self._parents: list[int] = []
        self._seen: set[str] = set()
        self._walk(graph.main, None)

    def buffer(self, value: int) -> int:
        """The first value of the buffer that it lies in."""
        while self._parents[value] != value:
            self._parents[value] = self._parents[self._parents[value]]
            value = self._parents[value]
        return value

    def _new(self, size: int, body: Body, node: Node) -> int:
        number = len(self.sizes)
        self.sizes.append(size)
        self.makers.append((body.name, node.name))
        self.held.append(node.opcode in HELD)
        self._parents.append(number)
        self.made.setdefault((body.name, node.name), []).append(number)
        return number

    def _join(self, one: int, other: int) -> None:
        first, second = sorted((self.buffer(one), self.buffer(other)))
        self._parents[second] = first

    def _join_parts(self, one: Part, other: Part) -> None:
        for number in one:
            for same in other:
                self._join(number, same)

    def _walk(self, body: Body, arguments: Sequence[Part | None] | None) -> None:
        """``arguments``: of a loop's body, the elements of its state that it hands on as they are."""
        for name in post_order(body):
            node = body.nodes[name]
            operands = [self.parts[body.name, operand] for operand in node.operands]
            self.parts[body.name, name] = self._of(body, node, operands, arguments)

    def _of(
        self, body: Body, node: Node, operands: list[list[Part]], arguments: Sequence[Part | None] | None
    ) -> list[Part]:
        if node.opcode == "tuple":
            found = [frozenset().union(*parts) for parts in operands]
            self._new(POINTER * len(node.sizes), body, node)
            return found
        if node.opcode == "get-tuple-element":
            return [operands[0][node.index]]
        if node.opcode in ("bitcast", "optimization-barrier", "opt-barrier"):
            return operands[0]
        if node.opcode == "while":
            return self._loop(body, node, operands[0])
        if node.opcode == "call" and node.body:
            return self._call(node, operands)
        known: Sequence[Part | None] = [None] * len(node.sizes)
        if node.opcode in _ENDS and not node.is_tuple:
            begun = operands[0]
            return begun[1:2] if node.opcode != "all-reduce-done" and len(begun) > 1 else begun[-1:]
        if node.opcode in _BEGINS and node.is_tuple and len(known) > 1:
            known = [frozenset().union(*(part for parts in operands for part in parts)), *known[1:]]
        if node.opcode == "parameter" and arguments is not None and len(arguments) == len(node.sizes):
            known = arguments
        found = [
            frozenset({self._new(size, body, node)}) if part is None else part
            for size, part in zip(node.sizes, known, strict=True)
        ]
        if node.is_tuple:
            self._new(POINTER * len(node.sizes), body, node)
        for part, slot in node.updates:
            self._join_parts(found[part], operands[slot][0])
        return found

    def _loop(self, body: Body, node: Node, state: list[Part]) -> list[Part]:
        inside = self.graph.bodies[node.body]
        invariants = inside.invariants()
        if node.body not in self._seen:
            self._seen.add(node.body)
            self._walk(inside, [part if same else None for part, same in zip(state, invariants, strict=True)])
        begins, ends = self.parts[node.body, inside.parameter()], self.parts[node.body, inside.root]
        found = []
        for at, (part, same) in enumerate(zip(state, invariants, strict=True)):
            if same:
                found.append(part)
                continue
            result = frozenset({self._new(node.sizes[at], body, node)})
            for other in (part, begins[at], ends[at]):
                self._join_parts(result, other)
            found.append(result)
        return found

    def _call(self, node: Node, operands: list[list[Part]]) -> list[Part]:
        inside = self.graph.bodies[node.body]
        if node.body not in self._seen:
            self._seen.add(node.body)
            self._walk(inside, None)
            for one in inside.nodes.values():
                if one.opcode == "parameter" and 0 <= one.number < len(operands):
                    for part, argument in zip(self.parts[node.body, one.name], operands[one.number], strict=True):
                        self._join_parts(part, argument)
        return self.parts[node.body, inside.root]
