"""Edits of a program's graph: what nobody reads goes, elements of loops' states come and go."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from perfscope.analyzers.advice.hlo_graph import NOTHING, Body, Graph, Node

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
