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

from perfscope.analyzers.checkpointing.xla_model.graph import VIEWS, Body, Graph, Node
from perfscope.analyzers.devices import named_device
from perfscope.analyzers.hlo.cost.module import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.module import HloModule, Instruction

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


# How long XLA thinks that a collective takes among the GPUs of one node.
#
# XLA has measured H100s and keeps a table; between its points it takes the bandwidth of the nearest. What is here was
# read off its log (``TF_CPP_VMODULE=sol_latency_estimator=10``, jax 0.10.2) as it compiled programs with one
# collective
# of each size, bfloat16. Collectives over nodes XLA works out from what it assumes of their network; here they count
# as those of eight devices.


_SMALLEST = 18
"""Logarithm of the bytes of the first column; from one to the next they double, up to 1 GiB."""
_MICROSECONDS: Mapping[str, Mapping[int, tuple[int, ...]]] = {
    "all-gather": {
        2: (13, 15, 18, 26, 31, 40, 60, 96, 161, 295, 549, 1049, 1997),
        4: (21, 16, 20, 29, 42, 57, 70, 113, 196, 350, 666, 1268, 2473),
        8: (19, 19, 31, 32, 47, 65, 82, 129, 214, 390, 729, 1392, 2730),
    },
    "all-reduce": {
        2: (16, 19, 21, 44, 43, 73, 101, 188, 330, 621, 1181, 2309, 4433),
        4: (20, 43, 43, 59, 59, 85, 153, 218, 395, 738, 1420, 2777, 5415),
        8: (26, 42, 52, 57, 69, 105, 145, 226, 380, 670, 1262, 2432, 4721),
    },
    "all-to-all": {
        2: (44, 19, 36, 49, 56, 47, 79, 106, 170, 308, 517, 961, 1721),
        4: (38, 38, 34, 36, 53, 79, 88, 136, 233, 358, 671, 1272, 2384),
        8: (25, 61, 55, 25, 37, 71, 106, 133, 219, 413, 759, 1461, 2797),
    },
    "collective-permute": {2: (14, 14, 14, 20, 41, 81, 163, 301, 573, 942, 1096, 1873, 3697)},
    "reduce-scatter": {
        2: (29, 20, 16, 31, 32, 43, 68, 126, 221, 406, 773, 1468, 2756),
        4: (15, 29, 29, 23, 42, 55, 70, 124, 224, 404, 774, 1490, 2892),
        8: (29, 41, 20, 34, 36, 59, 87, 134, 219, 412, 771, 1496, 2921),
    },
}
"""By kind and devices: one run, by the bytes of the whole array (of a permutation, those of a device)."""


def collective_microseconds(kind: str, size: int, devices: int) -> float:
    """One run of a collective of ``size`` bytes of the whole array among so many devices.

    Kinds are those of HLO; one that is not in the table counts as an ``all-reduce``.
    """
    tables = _MICROSECONDS.get(kind, _MICROSECONDS["all-reduce"])
    row = tables[min(tables, key=lambda count: (abs(count - devices), count))]
    sizes = [1 << (_SMALLEST + at) for at in range(len(row))]
    at = min(range(len(row)), key=lambda column: (abs(sizes[column] - size), -column))
    return float(row[0]) if size < sizes[0] else row[at] * size / sizes[at]


# How long XLA thinks that the kernels and collectives of a GPU program take, for its latency-hiding scheduler.
#
# XLA models kernels by the bytes they move and their arithmetic, and looks products and collectives up in tables that
# were measured on H100s. What is here was read off what it logs for programs of our own: kernels within a few percent
# where their bytes decide, products within a sixth, collectives as its table has them (``hlo_latency_links.py``). A
# file
# does not tell the device, so all times are those of an H100.


_DEVICE = "H100 SXM"
_US = 1e6
_PRODUCT = 5.0
"""Microseconds of a product beside its bytes and its arithmetic at the peak: so 18 products with sides of 256 to 8,192,
bfloat16 throughout, have the times of XLA's table within 15%, and small batched ones are thought twice as long."""
_WIDENED = 50.0
_WIDER = 64 / 0.6
"""Products of bfloat16 that are written in float32 (parts of a long sum) are not in the table. XLA takes others then,
by bytes of the result, and so counts arithmetic 64 times: as if they took 50 microseconds and that at 60% of the peak.
(Five products within 8%.)"""
_ARITHMETIC = 0.25
"""Share of the float32 peak that other arithmetic reaches."""
_HALF = ("bf16", "f16")
_SMALL = 0.01
"""Microseconds of what XLA does not model: loops, kernels of Triton without a product."""
_CALL = 10.0
"""Microseconds of a library call."""


class Clock:
    """Times of one program's instructions, and of what a plan adds to it."""

    def __init__(self, module: HloModule, cost: ModuleCost) -> None:
        self._module = module
        device = named_device(_DEVICE)
        assert device is not None
        self._bandwidth = float(device.memory_bandwidth)
        self._peaks = device.peak_flops
        self._rows = {row.instruction.name: row for row in cost.rows}
        """Names are unique in a module."""

    def times(self, graph: Graph) -> Mapping[tuple[str, str], float]:
        """Microseconds by computation and name; of the end of a collective, those of the collective."""
        return {
            (body.name, node.name): self._time(node, [body.nodes[name] for name in node.operands])
            for body in graph.bodies.values()
            for node in body.nodes.values()
        }

    def _time(self, node: Node, operands: list[Node]) -> float:
        row = self._rows.get(node.like or node.name)
        if node.opcode.endswith("-done"):
            return _SMALL if row is None else self._collective(node, row.instruction)
        if node.opcode in VIEWS or node.opcode.endswith("-start"):
            return 0.0
        if row is not None and not node.like:
            return self._kernel(row)
        moved = self._moved(node, operands)
        return moved if row is None or not row.once.products else moved + self._products(row)

    def _kernel(self, row: InstructionCost) -> float:
        one, cost = row.instruction, row.once
        moved = (cost.bytes_read + cost.bytes_written) / self._bandwidth * _US
        if cost.products and one.opcode != "while":
            return moved + self._products(row)
        if one.opcode == "custom-call":
            return _CALL
        if one.opcode != "fusion" or self._is_opaque(one):
            return _SMALL
        if any(part.opcode == "scatter" for part in self._module.computations[one.called[0]].instructions):
            moved = max(moved, 2 * one.shape.bytes / self._bandwidth * _US)  # XLA counts all of what it updates
        return max(moved, cost.flops / (_ARITHMETIC * self._peaks["float32"]) * _US)

    def _is_opaque(self, one: Instruction) -> bool:
        """A kernel that XLA gives no time: Triton's, without a product."""
        return one.fusion_kind not in ("kLoop", "kInput") and not self._rows[one.name].once.products

    def _products(self, row: InstructionCost) -> float:
        widened = self._is_widened(row.instruction)
        microseconds = _WIDENED if widened else _PRODUCT
        for product, flops in row.once.products.items():
            peak = self._peaks["bfloat16" if product.dtype in _HALF else "tf32"]
            microseconds += flops / peak * _US * (_WIDER if widened else 1.0)
        return microseconds

    def _is_widened(self, one: Instruction) -> bool:
        """Whether a product, or the one in a kernel, reads half precision and writes float32."""
        inside = self._module.computations[one.called[0]].instructions if one.opcode == "fusion" else (one,)
        return any(
            part.opcode == "dot" and part.shape.dtype == "f32" and product.dtype in _HALF
            for part in inside
            for product in self._rows[part.name].once.products
        )

    def _moved(self, node: Node, operands: list[Node]) -> float:
        """Of a kernel that a plan adds: it reads its operands and writes its result, or a part of a stack."""
        updated = {slot for _, slot in node.updates}
        read = [one.bytes for at, one in enumerate(operands) if at not in updated]
        if node.updates:
            moved = 2 * sum(read)
        elif any(one.is_scalar for one in operands):
            moved = 2 * node.bytes  # a layer's part, by the loop's counter
        else:
            moved = sum(read) + node.bytes
        return moved / self._bandwidth * _US

    def _collective(self, node: Node, one: Instruction) -> float:
        """``one``: the end of the collective, or of the one that it is like."""
        begin = self._rows[one.operands[0]].instruction
        kind = begin.opcode.removesuffix("-start")
        if begin.opcode == "async-start" and begin.called:
            begin = self._module.computations[begin.called[0]].root
            kind = begin.opcode
        groups = begin.replica_groups
        devices = max(map(len, groups)) if groups else self._module.num_partitions * self._module.num_replicas
        whole = node.bytes * (devices if kind == "reduce-scatter" else 1)
        return collective_microseconds(kind, whole, devices)
