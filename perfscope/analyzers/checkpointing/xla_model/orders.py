"""The orders in which XLA's memory schedulers run a computation: post-order, depth first, and whatever frees the most.

XLA tries all three on the whole program and keeps the one whose heap simulation has the lowest peak (the first of
list, depth first, post-order where two are equal). Of programs compiled for an H100, post-order and depth first are
found here instruction by instruction; the list differs where two instructions are equal to it, and XLA goes by the
order in which it made them, which no file tells.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from perfscope.analyzers.checkpointing.xla_model.graph import HELD, Body, Node
from perfscope.analyzers.hlo.flow import Flow

if TYPE_CHECKING:
    from perfscope.analyzers.checkpointing.xla_model.graph_edit import Values


Order = dict[str, list[str]]
"""Instructions of each computation as they run."""
_FIRST = 2**63 - 1
"""Priority of single numbers: they stay in registers if what reads them comes soon."""


def post_order(body: Body, key: Callable[[str], tuple[int, int, str]] | None = None) -> list[str]:
    """What an instruction reads, in order (by ``key`` where there is one), and then itself. ``ValueError`` in a circle.

    What it must follow without reading it comes first.
    """
    users = body.users()
    state: dict[str, int] = {}
    found: list[str] = []
    for start in (name for name in body.nodes if not users[name]):
        waiting = [start]
        while waiting:
            name = waiting[-1]
            if name in state:
                waiting.pop()
                if state[name] == 1:
                    state[name] = 2
                    found.append(name)
                continue
            state[name] = 1
            node = body.nodes[name]
            children = [*reversed(node.operands), *node.after]
            if key is not None:
                children = sorted({*node.operands, *node.after}, key=key, reverse=True)
            if any(state.get(child) == 1 for child in children):
                raise ValueError(f"instructions of {body.name} need each other")
            waiting += [child for child in children if child not in state]
    if len(found) != len(body.nodes):
        raise ValueError(f"instructions of {body.name} need each other")
    return found


def depth_first(values: Values, body: Body) -> list[str]:
    """Post-order in which what many read, and what much memory was made for, comes first."""
    users = body.users()
    readers: dict[str, int] = {}
    sizes: dict[str, int] = {}
    total = 0
    for name in post_order(body):
        node = body.nodes[name]
        if node.opcode in HELD:
            readers[name] = sizes[name] = 0
            continue
        own = sum(values.sizes[value] for value in values.made.get((body.name, name), ()))
        total += own
        operands = dict.fromkeys(node.operands)
        count = max(0, len(users[name]) - 1) + sum(readers[operand] for operand in operands)
        readers[name] = min(count, len(body.nodes))
        sizes[name] = min(own + sum(sizes[operand] for operand in operands), total)
    return post_order(body, lambda name: (-readers[name], -sizes[name], name))


def frees_most(values: Values, body: Body) -> list[str]:
    """A list scheduler: of what is ready, whatever frees the most bytes for those it makes."""
    return list(_List(values, body).run())


def all_orders(values: Values) -> Iterator[tuple[str, Order]]:
    """By name, in the order in which XLA prefers them."""
    bodies = values.graph.bodies
    yield "list", {name: frees_most(values, body) for name, body in bodies.items()}
    yield "depth first", {name: depth_first(values, body) for name, body in bodies.items()}
    yield "post-order", {name: post_order(body) for name, body in bodies.items()}


class _List:
    """One computation on its way through the list scheduler."""

    def __init__(self, values: Values, body: Body) -> None:
        self._values = values
        self._body = body
        self._users = body.users()
        self._base = post_order(body)
        self._uses = {name: self._used(name) for name in self._base}
        self._left: dict[int, int] = defaultdict(int)
        """Readers of a value that are still to run."""
        for used in self._uses.values():
            for value in used:
                self._left[value] += 1
        for part in values.parts[body.name, body.root]:
            for value in part:
                self._left[value] += 1
        self._heap: list[tuple[int, int, int, str]] = []
        self._latest: dict[str, tuple[int, int, int]] = {}
        self._count = 0

    def _used(self, name: str) -> frozenset[int]:
        found: set[int] = set()
        for operand in self._body.nodes[name].operands:
            found.update(*self._values.parts[self._body.name, operand])
            found.update(self._values.made.get((self._body.name, operand), ()))
        return frozenset(found)

    def _priority(self, name: str) -> tuple[int, int]:
        node = self._body.nodes[name]
        if node.is_scalar:
            return _FIRST, _FIRST
        values = self._values
        freed = sum(
            values.sizes[value] for value in self._uses[name] if not values.held[value] and self._left[value] == 1
        )
        made = 0 if node.opcode in HELD else sum(values.sizes[v] for v in values.made.get((self._body.name, name), ()))
        return freed - made, len(self._users[name])

    def _ready(self, name: str) -> None:
        freed, readers = self._priority(name)
        before = self._latest.get(name)
        if before is not None and before[:2] == (-freed, -readers):
            return
        self._count += 1
        entry = (-freed, -readers, -self._count)  # of equals, the last one that became ready
        self._latest[name] = entry
        heapq.heappush(self._heap, (*entry, name))

    def run(self) -> Iterator[str]:
        """Instructions, the first first."""
        followers: Mapping[str, list[str]] = {name: list(readers) for name, readers in self._users.items()}
        for node in self._body.nodes.values():
            for name in node.after:
                followers[name].append(node.name)
        missing: dict[str, int] = defaultdict(int)
        for names in followers.values():
            for name in names:
                missing[name] += 1
        for name in self._base:
            if not missing[name]:
                self._ready(name)
        while self._heap:
            *entry, name = heapq.heappop(self._heap)
            if self._latest.get(name) != tuple(entry):
                continue  # its priority has changed since
            del self._latest[name]
            yield name
            freeing = self._run(name)
            for follower in followers[name]:
                missing[follower] -= 1
                if not missing[follower]:
                    self._ready(follower)
            if freeing:
                self._again(self._body.nodes[name].operands)

    def _run(self, name: str) -> bool:
        """Counts its reads; whether someone is the last reader of a value now."""
        freeing = False
        for value in self._uses[name]:
            self._left[value] -= 1
            freeing = freeing or self._left[value] == 1
        return freeing

    def _again(self, operands: Sequence[str]) -> None:
        for operand in operands:
            for name in self._users[operand]:
                if name in self._latest:
                    self._ready(name)


# What XLA rather reads than computes a second time, and how a kernel comes to write it as well.


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
