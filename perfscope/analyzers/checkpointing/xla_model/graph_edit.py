"""Edits of a program's graph: what nobody reads goes, elements of loops' states come and go."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from perfscope.analyzers.checkpointing.xla_model.graph import HELD, NOTHING, Body, Graph, Node
from perfscope.analyzers.checkpointing.xla_model.orders import post_order

_T = TypeVar("_T")

_MOST_ROUNDS = 16
"""Of sweeping: an element of a loop's state that is gone may free what another loop made for it."""


def without_unread(graph: Graph) -> None:
    """Takes out what nobody reads: instructions, parts of kernels' results, and elements of loops' states."""
    for _ in range(_MOST_ROUNDS):
        changed = False
        for body in graph.bodies.values():
            changed = _sweep(body) or changed
        for body in graph.bodies.values():
            for node in list(body.nodes.values()):
                if node.opcode == "while" and body.nodes[node.operands[0]].opcode == "tuple":
                    changed = _unread_elements(graph, body, node) or changed
        if not changed:
            return


def without_unrun(graph: Graph) -> None:
    """Takes out computations that nothing runs any more."""
    waiting, seen = [graph.entry], {graph.entry}
    while waiting:
        for node in graph.bodies[waiting.pop()].nodes.values():
            if node.body and node.body not in seen:
                seen.add(node.body)
                waiting.append(node.body)
    for name in [name for name in graph.bodies if name not in seen]:
        del graph.bodies[name]


def _sweep(body: Body) -> bool:
    users = body.users()
    count = len(body.nodes)
    waiting = [name for name, readers in users.items() if not readers]
    while waiting:
        name = waiting.pop()
        if name == body.root or name not in body.nodes or body.nodes[name].opcode == "parameter":
            continue
        for operand in dict.fromkeys(body.nodes.pop(name).operands):
            users[operand].remove(name)
            if not users[operand]:
                waiting.append(operand)
    for node in list(body.nodes.values()):
        if any(name not in body.nodes for name in node.after):
            body.change(node.name, after=tuple(name for name in node.after if name in body.nodes))
        if node.is_tuple and node.opcode not in ("while", "tuple", "parameter") and node.name != body.root:
            readers = [body.nodes[name] for name in users[node.name] if name in body.nodes]
            if all(one.opcode == "get-tuple-element" for one in readers):
                read = {one.index for one in readers}
                sizes = tuple(size if at in read else 0 for at, size in enumerate(node.sizes))
                body.change(node.name, sizes=sizes)
    return len(body.nodes) != count


def _unread_elements(graph: Graph, body: Body, loop: Node) -> bool:
    inside = graph.bodies[loop.body]
    root, state = inside.nodes[inside.root], inside.parameter()
    readers = [body.nodes[name] for name in body.users()[loop.name]]
    if root.opcode != "tuple" or any(one.opcode != "get-tuple-element" for one in readers):
        return False
    read = {one.index for one in readers}
    users = inside.users()
    gone = []
    for at in range(len(root.operands)):
        if at in read or body.nodes[loop.operands[0]].operands[at] == NOTHING:
            continue
        begins = [name for name in users[state] if inside.nodes[name].index == at]
        if _feeds_only(inside, users, begins, at):
            gone.append(at)
    for at in gone:
        drop_element(graph, body, loop.name, at)
    return bool(gone)


def _feeds_only(body: Body, users: dict[str, list[str]], begins: Sequence[str], at: int) -> bool:
    """Whether all that reads these ends in one element of what the body returns."""
    waiting, seen = list(begins), set(begins)
    while waiting:
        name = waiting.pop()
        for user in users[name]:
            node = body.nodes[user]
            if user == body.root:
                if any(operand == name and place != at for place, operand in enumerate(node.operands)):
                    return False
            elif node.opcode == "while" or node.is_tuple:
                return False
            elif user not in seen:
                seen.add(user)
                waiting.append(user)
    return True


def drop_element(graph: Graph, body: Body, loop: str, at: int) -> None:
    """Takes an element out of a loop's state: nothing goes in, and the body hands it on."""
    if NOTHING not in body.nodes:
        body.add(Node(name=NOTHING, opcode="constant", sizes=(0,), is_scalar=True))
    node = body.nodes[loop]
    inside = graph.bodies[node.body]
    begin = body.nodes[node.operands[0]]
    body.change(begin.name, operands=_with(begin.operands, at, NOTHING))
    element = state_element(inside, at)
    root = inside.nodes[inside.root]
    inside.change(root.name, operands=_with(root.operands, at, element))
    inside.change(element, sizes=(0,))
    state = inside.nodes[inside.parameter()]
    inside.change(state.name, sizes=_with(state.sizes, at, 0))
    body.change(loop, sizes=_with(node.sizes, at, 0))


def add_element(graph: Graph, body: Body, loop: str, begin: str, size: int) -> tuple[int, str]:
    """A further element of a loop's state, handed on as it is: its place, and its name in the loop's body."""
    node = body.nodes[loop]
    inside = graph.bodies[node.body]
    start = body.nodes[node.operands[0]]
    body.change(start.name, operands=(*start.operands, begin), sizes=(*start.sizes, size))
    body.change(loop, sizes=(*node.sizes, size))
    state = inside.nodes[inside.parameter()]
    inside.change(state.name, sizes=(*state.sizes, size))
    at = len(state.sizes)
    element = state_element(inside, at)
    root = inside.nodes[inside.root]
    inside.change(root.name, operands=(*root.operands, element), sizes=(*root.sizes, size))
    return at, element


def state_element(inside: Body, at: int) -> str:
    """The instruction of a loop's body that takes an element out of its state."""
    state = inside.parameter()
    for node in inside.nodes.values():
        if node.opcode == "get-tuple-element" and node.operands == (state,) and node.index == at:
            return node.name
    size = inside.nodes[state].sizes[at]
    name = f"{state}.{at}"
    return inside.add(Node(name=name, opcode="get-tuple-element", operands=(state,), sizes=(size,), index=at))


def spliced(node: Node, gone: Collection[str], instead: Sequence[str]) -> Node:
    """An instruction that reads other operands instead of some. It is not written onto those."""
    operands: list[str] = []
    slots: dict[int, int] = {}
    for slot, operand in enumerate(node.operands):
        if operand in gone:
            operands += [name for name in instead if name not in operands]
        else:
            slots[slot] = len(operands)
            operands.append(operand)
    return replace(
        node,
        operands=tuple(operands),
        updates=tuple((part, slots[slot]) for part, slot in node.updates if slot in slots),
        reuses=tuple((part, slots[slot]) for part, slot in node.reuses if slot in slots),
    )


def _with(items: tuple[_T, ...], at: int, item: _T) -> tuple[_T, ...]:
    return (*items[:at], item, *items[at + 1 :])


# The values of a program's graph, and which of them lie in one buffer: XLA's dataflow and alias analysis.
#
# A loop's state is one buffer an element: what goes in, what the body sees, what it returns and what comes out. An
# element that the body hands on as it is stays the value that went in.


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
