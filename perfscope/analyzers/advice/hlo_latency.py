"""The order in which XLA runs a computation of a GPU program whose collectives begin and end apart.

Its latency-hiding scheduler takes the order that the memory schedulers chose and goes through it from the last
instruction to the first: of what nothing still to be placed reads, it places one in front of all placed so far, by
these rules, the first that tells two apart:

1. the end of a collective (or a loop with collectives in it) before anything else;
2. what stalls the least: the beginning of a collective is ready as long before its end as the collective takes, any
   other instruction when its readers begin;
3. the beginning of a collective that waits for no other collective last, unless the next is ready to end;
4. the beginning of a collective that another one waits for;
5. what most time in collectives lies in front of, on any one way to it;
6. what takes nearest to the time left until the next collective can begin; but not a beginning, for that;
7. what reads the end of a collective;
8. what lets most others become ready;
9. what came last.

One collective is under way at a time. What moves no data (views, constants) is placed as soon as it is ready. All is
learnt from XLA's source and held against what it logs of each choice. Not in it: memory, which XLA looks at where more
than half of its limit is in use, and copies to and from the host. How long things take is in ``hlo_latency_times.py``.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from perfscope.analyzers.advice.hlo_graph import Body, Graph, Node

Times = Mapping[tuple[str, str], float]
"""Microseconds of each instruction by computation and name; of the end of a collective, those of the collective."""

_FREE = frozenset({"bitcast", "broadcast", "constant", "get-tuple-element", "iota", "parameter"})
_COLLECTIVES = (
    "all-gather", "all-reduce", "all-to-all", "async", "collective-broadcast", "collective-permute",
    "ragged-all-to-all", "reduce-scatter",
)  # fmt: skip
_BEGINS = frozenset(f"{name}-start" for name in _COLLECTIVES)
_ENDS = frozenset(f"{name}-done" for name in _COLLECTIVES)
MOST = 12_000
"""Instructions of a computation that is ordered once more: each is chosen from all that are ready, which takes 10
seconds where thousands are."""
_STEP = 1.0
"""Microseconds from any instruction to its reader, for XLA."""
_PLACED = 1.0
"""Microseconds of the beginning or the end of a collective itself."""


def begins(node: Node) -> bool:
    """Whether it begins a collective that ends apart."""
    return node.opcode in _BEGINS


def ends(node: Node) -> bool:
    """Whether it ends one."""
    return node.opcode in _ENDS


def hides(graph: Graph) -> frozenset[str]:
    """Computations that are ordered once more: of up to ``MOST`` instructions, and a collective in it ends apart."""
    return frozenset(
        name
        for name, body in graph.bodies.items()
        if len(body.nodes) <= MOST and any(ends(one) for one in body.nodes.values())
    )


def hidden(graph: Graph, order: Mapping[str, Sequence[str]], times: Times) -> dict[str, list[str]]:
    """Orders of all computations after XLA's latency-hiding scheduler. Others than ``hides`` stay as they are.

    Time: instructions of such a computation times how many are ready at once.
    """
    chosen = hides(graph)
    with_collectives = _with_collectives(graph, chosen)
    return {
        name: _Bottom(graph.bodies[name], names, times, with_collectives).run() if name in chosen else list(names)
        for name, names in order.items()
    }


def _with_collectives(graph: Graph, chosen: frozenset[str]) -> frozenset[str]:
    """Computations in which collectives run, also within loops."""
    found = set(chosen)
    changed = True
    while changed:
        more = {
            name
            for name, body in graph.bodies.items()
            if name not in found and any(one.body in found for one in body.nodes.values())
        }
        changed = bool(more)
        found |= more
    return frozenset(found)


@dataclass(slots=True, kw_only=True)
class _Item:
    """An instruction on its way. Times count from the end of the computation, in microseconds."""

    name: str
    position: int
    cost: float
    free: bool
    begins: bool
    """The beginning of a collective, or a loop with collectives in it."""
    ends: bool
    is_loop: bool
    reads_end: bool = False
    before: list[tuple[int, float]] = field(default_factory=list)
    """Positions of what it waits for, and for how long."""
    after: list[tuple[int, float]] = field(default_factory=list)
    missing: int = 0
    """Readers that are not placed."""
    depth: float = 0.0
    """Most time in collectives on any way to it."""
    ready: float = 0.0


class _Bottom:
    """One computation, from its last instruction to its first."""

    def __init__(self, body: Body, order: Sequence[str], times: Times, with_collectives: frozenset[str]) -> None:
        self._items = [_item(body, at, body.nodes[name], times, with_collectives) for at, name in enumerate(order)]
        self._join(body, {name: at for at, name in enumerate(order)}, times)
        self._now = 0.0
        self._under_way = False
        self._waiting_to_end = 0
        """Ends that are ready, and loops with collectives that were at any time: XLA does not count those down."""
        self._ready: list[_Item] = []
        self._ends: list[_Item] = []
        """Ends of collectives that are ready, and loops with collectives."""
        self._free: list[_Item] = []
        self._next: list[tuple[float, int]] = []

    def _join(self, body: Body, positions: Mapping[str, int], times: Times) -> None:
        items = self._items
        users, waiters = body.users(), _waiters(body, positions)
        for one in items:
            node = body.nodes[one.name]
            followers = [positions[user] for user in users[one.name]]
            followers += waiters[one.name]
            for at in followers:
                other = items[at]
                pair = begins(node) and ends(body.nodes[other.name])
                wait = times[body.name, other.name] if pair else _STEP
                one.after.append((at, wait))
                other.before.append((one.position, wait))
            one.missing = len(one.after)
        for one in items:
            one.reads_end = any(items[at].ends and not items[at].is_loop for at, _ in one.before)
            collective = one.ends and not one.is_loop
            for at, wait in one.before:
                one.depth = max(one.depth, items[at].depth + (wait if collective else 0.0))

    def run(self) -> list[str]:
        """Instructions, the first first."""
        placed: list[str] = []
        for one in self._items:
            if not one.missing:
                self._queue(one)
        while self._free or self._ready or self._ends:
            one = self._free.pop() if self._free else self._take()
            placed.append(one.name)
            self._place(one)
        return placed[::-1]

    def _queue(self, one: _Item) -> None:
        (self._free if one.free else self._ends if one.ends else self._ready).append(one)

    def _take(self) -> _Item:
        """The best of what is ready: an end where none is under way, else by the next four rules and ``_better``."""
        ready = self._ends if self._ends and not (self._under_way and self._ready) else self._ready
        now, chosen, best = self._now, -1, ready[0]
        stall, last = 0.0, (False, False)
        blocked = self._under_way and self._waiting_to_end > 0
        least = -1.0
        """Depth below which any but a blocked beginning loses."""
        for at, one in enumerate(ready):
            if one.depth < least and not (one.begins and blocked):
                continue
            mine = one.ready - now if one.ready > now else 0.0
            tail = (not (one.begins and not one.depth and not blocked), one.begins and blocked)
            if chosen >= 0:
                if mine != stall:
                    wins = mine < stall
                elif tail != last:
                    wins = tail > last
                elif one.depth != best.depth:
                    wins = one.depth > best.depth
                else:
                    wins = self._better(one, best)
                if not wins:
                    continue
            chosen, best, stall, last = at, one, mine, tail
            least = one.depth if not mine and tail == (True, False) else -1.0
        ready[chosen] = ready[-1]
        ready.pop()
        return best

    def _better(self, one: _Item, other: _Item) -> bool:
        """The rules behind those."""
        if self._next:
            left = self._items[self._next[0][1]].ready - self._now
            mine, its = abs(left - one.cost), abs(left - other.cost)
            wins, loses = not one.begins and mine < its, not other.begins and its < mine
            if wins != loses:
                return wins
        if one.reads_end != other.reads_end:
            return one.reads_end
        mine, its = self._unlocks(one), self._unlocks(other)
        if mine != its:
            return mine > its
        return one.position > other.position

    def _unlocks(self, one: _Item) -> int:
        return sum(self._items[at].missing == 1 for at, _ in one.before)

    def _place(self, one: _Item) -> None:
        if one.ends and not one.is_loop:
            self._under_way = True
            self._waiting_to_end -= 1
        elif one.begins and not one.is_loop:
            self._under_way = False
        one.ready = max((self._now, *(self._items[at].ready + wait for at, wait in one.after)))
        self._now = one.ready + one.cost
        while self._next and self._items[self._next[0][1]].ready < self._now:
            heapq.heappop(self._next)
        for at, _ in one.before:
            other = self._items[at]
            other.missing -= 1
            if not other.missing:
                self._release(other)

    def _release(self, one: _Item) -> None:
        one.ready = max((self._now, *(self._items[at].ready + wait for at, wait in one.after)))
        self._waiting_to_end += one.ends
        self._queue(one)
        if one.ready > self._now and not one.free:
            heapq.heappush(self._next, (one.ready, one.position))


def _item(body: Body, at: int, node: Node, times: Times, with_collectives: frozenset[str]) -> _Item:
    loop = node.body in with_collectives
    paired = begins(node) or ends(node)
    cost = _PLACED if paired else 0.0 if _is_free(node) else times[body.name, node.name]
    return _Item(
        name=node.name,
        position=at,
        cost=cost,
        free=_is_free(node) or _goes_into_a_loop(body, node),
        begins=begins(node) or loop,
        ends=ends(node) or loop,
        is_loop=loop,
    )


def _waiters(body: Body, positions: Mapping[str, int]) -> dict[str, list[int]]:
    """Positions of what must follow an instruction for another reason than reading it."""
    found: dict[str, list[int]] = defaultdict(list)
    for node in body.nodes.values():
        for name in node.after:
            found[name].append(positions[node.name])
        if begins(node) and not node.is_tuple:
            for name in _written_over(body, node.operands[0]):
                found[name].append(positions[node.name])
    return found


def _written_over(body: Body, name: str) -> Iterator[str]:
    """Who reads the memory that a sum over devices is written onto: its operand's views, and what updates that."""
    while True:
        node = body.nodes[name]
        slots = [slot for _, slot in node.updates] if node.opcode != "bitcast" else [0]
        if not slots or not node.operands:
            return
        yield name
        name = node.operands[slots[0]]


def _is_free(node: Node) -> bool:
    return node.opcode in _FREE


def _goes_into_a_loop(body: Body, node: Node) -> bool:
    if node.opcode != "tuple":
        return False
    return [one.opcode for one in body.nodes.values() if node.name in one.operands] == ["while"]
