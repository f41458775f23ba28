"""Which values XLA writes to memory where it fuses a program for a GPU: its priority fusion, followed step by step.

XLA takes the instruction from whose fusion it expects the most, puts a copy of it into each of its readers, and goes
on until no fusion is worth its while: one is, where the readers take no longer with the copies in them than the
instruction and its readers take apart. So a value is written where it is dear, or has many readers that would each
read again what it is computed from. The times are those of XLA's cost model for an H100 (gpu_performance_model.cc,
gpu_hlo_cost_analysis.cc): bytes at the memory's bandwidth, cycles at the processors' rate, a microsecond a launch.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.checkpointing.xla_model.layers import Layers
from perfscope.analyzers.checkpointing.xla_model.policies import Keeps
from perfscope.analyzers.checkpointing.xla_model.same import Sames
from perfscope.analyzers.checkpointing.xla_model.sharing import ELEMENTWISE
from perfscope.analyzers.hlo.flow import Flow
from perfscope.analyzers.hlo.module import Computation, Instruction

_LAUNCH = 1e-6
"""Seconds."""
_BANDWIDTH = 3.352e12
"""Bytes a second of an H100's memory."""
_RATE = 132 * 128 * 2 * 1.98e9
"""Cycles' worth of arithmetic a second: processors, lanes, two of a multiply-add, clock."""
_BLOCK = 128
"""Threads of a kernel's block."""
_LANES = 132 * 128
_PER_BLOCK = 1.98e9 * 32
"""Bytes a second that one block of threads can ask for."""
_CACHES = ((132 * 2 * 1024, 20.0), (52_428_800, 2.5))
"""Sizes up to which an array is read again from a cache, and how much faster."""
_OVERLAP = 0.95
"""Share of the shorter of arithmetic and memory that hides behind the longer."""
_MOST_CODE = 1_000
"""Instructions of one kernel, with all copies: three times those of the longest that was seen. XLA has such a limit."""
MOST_WORK = 2_000_000
"""Instructions and operands that are looked at until fusion is given up: some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One instruction of a program before it is fused. Times are found from its sizes."""

    operands: tuple[int, ...] = ()
    """Places of others in the list, each in front of this one."""
    uses: tuple[float, ...] = ()
    """Of each operand, how often all of it is read."""
    elements: int
    bytes: int
    cycles: int = 0
    """Arithmetic of all elements."""
    pointwise: bool = True
    """Each element comes from the operands' elements at the same place."""
    reduces: bool = False
    """It sums up, or takes the largest."""
    broadcasts: bool = False
    """It repeats its operand."""
    view: bool = False
    """It only names the operand's elements in another shape: always within its readers."""
    produces: bool = True
    """It may be computed within its readers."""
    consumes: bool = True
    """What it reads may be computed within it."""


Body = list[tuple[int, tuple[int, ...]]]
"""Instructions of a kernel, each behind those that read it: its place in the program, and for each operand its place
here, or, of what is read from memory, the complement of its place in the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    """What one instruction's kernel computes and reads."""

    cycles: float
    reads: dict[int, float]
    """Operand, and how often all of it is read."""
    roots: dict[int, frozenset[int]]
    """Operand, and the places inside from which every way to it is element by element."""
    weights: dict[int, float]
    """How often each such place is computed."""
    time: float


def written(ops: Sequence[Op]) -> dict[int, frozenset[int]]:
    """Places of the instructions that end up with a result in memory, with those of its readers; no views.

    None at all where that would take too long (``MOST_WORK``).
    """
    fusion = _Fusion(ops)
    return {at: fusion.readers(at) for at in fusion.run()}


def saving(ops: Sequence[Op], at: int) -> float:
    """Seconds that computing one of them within its readers saves, before anything is fused; ``-inf``: it cannot be."""
    return _Fusion(ops).gain(at)


class _Fusion:
    def __init__(self, ops: Sequence[Op]) -> None:
        self._ops = ops
        self._readers: list[set[int]] = [set() for _ in ops]
        for at, op in enumerate(ops):
            for operand in op.operands:
                self._readers[operand].add(at)
        self._bodies: dict[int, Body] = {
            at: [(at, tuple(~operand for operand in op.operands))] for at, op in enumerate(ops)
        }
        """Of those that are not within their readers."""
        self._kernels: dict[int, _Kernel] = {}
        self._heap: list[tuple[float, int]] = []
        self._latest: dict[int, float] = {}
        self._work = 0

    def run(self) -> list[int]:
        """Fuses until nothing more is worth it."""
        for at, op in enumerate(self._ops):
            if op.view:
                self._fuse({one for one in self._readers[at] if self._ops[one].consumes}, at)
        for at in list(self._bodies):
            self._weigh(at)
        while self._heap:
            gain, negative = heapq.heappop(self._heap)
            at = -negative
            if at in self._bodies and self._latest.get(at) == gain:
                for one in sorted(self._fuse(set(self._readers[at]), at)):
                    self._weigh(one)
        return [at for at in self._bodies if not self._ops[at].view] if self._work <= MOST_WORK else []

    def readers(self, at: int) -> frozenset[int]:
        """Whose kernels read it."""
        return frozenset(self._readers[at])

    def _weigh(self, at: int) -> None:
        """Puts an instruction into the queue with what its fusion gains, if it does."""
        self._latest.pop(at, None)
        if self._work > MOST_WORK:
            return
        gain = self.gain(at)
        if gain >= 0:
            self._latest[at] = -gain
            heapq.heappush(self._heap, (-gain, -at))

    def gain(self, at: int) -> float:
        """Seconds that it saves to compute an instruction within its readers; negative also where it cannot be."""
        readers, op = self._readers[at], self._ops[at]
        if not readers or not op.produces or op.view or not all(self._ops[one].consumes for one in readers):
            return -math.inf
        if len(self._bodies[at]) + max(len(self._bodies[one]) for one in readers) > _MOST_CODE:
            return -math.inf
        gain = self._kernel(at).time + _LAUNCH
        for one in readers:
            gain += self._kernel(one).time - self._together(at, one)
        return round(gain, 15)

    def _fuse(self, readers: set[int], at: int) -> set[int]:
        """Into these; whom that concerns."""
        body, sources = self._bodies[at], {~ref for _, refs in self._bodies[at] for ref in refs if ref < 0}
        touched = set(readers)
        for one in readers:
            mine = self._bodies[one]
            shift = len(mine)
            merged = [(op, tuple(shift if ref == ~at else ref for ref in refs)) for op, refs in mine]
            merged += [(op, tuple(ref if ref < 0 else ref + shift for ref in refs)) for op, refs in body]
            self._bodies[one] = merged
            self._kernels.pop(one, None)
            touched.update(~ref for _, refs in merged for ref in refs if ref < 0)
        self._readers[at] -= readers
        for source in sources:
            self._readers[source] |= readers
        if not self._readers[at]:
            del self._bodies[at]
            for source in sources:
                self._readers[source].discard(at)
            touched.discard(at)
        return touched

    def _kernel(self, at: int) -> _Kernel:
        if at not in self._kernels:
            self._kernels[at] = self._look(at)
        return self._kernels[at]

    def _look(self, root: int) -> _Kernel:
        ops, body = self._ops, self._bodies[root]
        self._work += len(body)
        roots: dict[int, set[int]] = {0: {0}}
        weights: dict[int, float] = {0: 1.0}
        cycles = 0.0
        for at, (number, refs) in enumerate(body):
            use = sum(weights[one] for one in roots[at])
            op = ops[number]
            cycles += use * op.cycles
            for operand, share, ref in zip(op.operands, op.uses, refs, strict=True):
                if op.pointwise:
                    roots.setdefault(ref, set()).update(roots[at])
                else:
                    roots.setdefault(ref, set()).add(ref)
                    size = max(ops[operand].elements, 1)
                    weights[ref] = weights.get(ref, 0.0) + math.ceil(round(use * share * size, 3)) / size
        outside = [ref for ref in roots if ref < 0]
        reads = {~ref: sum(weights[one] for one in roots[ref]) for ref in outside}
        return _Kernel(
            cycles=cycles,
            reads=reads,
            roots={~ref: frozenset(roots[ref]) for ref in outside},
            weights=weights,
            time=self._time(root, cycles, {one: use * ops[one].bytes for one, use in reads.items()}),
        )

    def _together(self, at: int, reader: int) -> float:
        """Seconds of a reader with an instruction in it, as XLA estimates it before it fuses them."""
        one, other = self._kernel(at), self._kernel(reader)
        self._work += len(one.reads) + len(other.reads)
        use = other.reads[at]
        total = {source: share * self._ops[source].bytes for source, share in other.reads.items() if source != at}
        for source, share in one.reads.items():
            size = self._ops[source].bytes
            common = 0.0
            if source in other.reads and self._is_pointwise(at, source):
                if len(self._bodies[reader]) > 1:
                    common = sum(other.weights[place] for place in other.roots[source] & other.roots[at])
                elif self._ops[reader].pointwise:
                    common = 1.0
            total[source] = total.get(source, 0.0) + share * use * size - common * size
        return self._time(reader, one.cycles * use + other.cycles, total)

    def _is_pointwise(self, at: int, source: int) -> bool:
        """Whether an instruction, with what is fused into it, reads something element by element."""
        return 0 in self._kernel(at).roots[source] if len(self._bodies[at]) > 1 else self._ops[at].pointwise

    def _time(self, root: int, cycles: float, reads: Mapping[int, float]) -> float:
        op = self._ops[root]
        blocks = max(1, math.ceil(op.elements / _BLOCK))
        arithmetic = cycles / (_RATE * min(1.0, blocks * _BLOCK / _LANES))
        memory = op.bytes / _BANDWIDTH
        for one, size in reads.items():
            memory += _read_time(min(self._ops[one].bytes, size), size, self._ops[one].bytes, blocks)
        return arithmetic + memory - _OVERLAP * min(arithmetic, memory)


def _read_time(once: float, total: float, size: int, blocks: int) -> float:
    again = next((_BANDWIDTH * faster for limit, faster in _CACHES if once < limit), _BANDWIDTH)
    most = blocks * _PER_BLOCK
    return once / min(_BANDWIDTH, most) + (total - once) / min(again, most)


# What of that which XLA's priority fusion leaves in memory does not stay there.


def merged(ops: Sequence[Op], readers: Mapping[int, Iterable[int]]) -> frozenset[int]:
    """Places of what is read by kernels of its own size alone: XLA makes one kernel of them, with several results.

    A kernel that reduces has the size of what it reduces.

    ``readers``: whose kernels read what is written. Not where a kernel between two of them is another one.
    """
    found: set[int] = set()
    for at in sorted(readers, reverse=True):
        users = set(readers[at])
        if any(_size(ops, one) != ops[at].elements or not ops[one].consumes for one in users):
            continue  # nobody reads it, and so nobody wants it in memory, where there are none
        beyond = {other for one in users for other in readers.get(one, ()) if other not in users}
        waiting, seen = list(beyond), set(beyond)
        while waiting:
            for one in readers.get(waiting.pop(), ()):
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)
        if users.isdisjoint(seen):
            found.add(at)
    return frozenset(found)


def _size(ops: Sequence[Op], at: int) -> int:
    return ops[ops[at].operands[0]].elements if ops[at].reduces else ops[at].elements


def normalized(ops: Sequence[Op]) -> frozenset[int]:
    """Places of what is combined with its own sum or maximum along rows (a softmax, a norm).

    XLA makes a kernel of Triton's of such, before all others, and models its times in another way.
    """
    users: list[list[int]] = [[] for _ in ops]
    for at, op in enumerate(ops):
        for operand in op.operands:
            users[operand].append(at)
    found: set[int] = set()
    for at, op in enumerate(ops):
        if op.reduces:
            above = _up(ops, op.operands[:1], ops[op.operands[0]].elements)
            rows, users_of_rows = _spread(ops, users, at)
            if any(above & _up(ops, ops[one].operands, ops[one].elements) for one in users_of_rows):
                found |= above | rows
    return frozenset(found)


def _up(ops: Sequence[Op], begin: Iterable[int], elements: int) -> set[int]:
    """What leads to some values element by element."""
    waiting = [one for one in begin if ops[one].elements == elements]
    seen = set(waiting)
    while waiting:
        op = ops[waiting.pop()]
        for one in op.operands if op.pointwise or op.view else ():
            if one not in seen and ops[one].elements == elements:
                seen.add(one)
                waiting.append(one)
    return seen


def _spread(ops: Sequence[Op], users: Sequence[Sequence[int]], at: int) -> tuple[set[int], set[int]]:
    """What is computed from a row's number, and who combines it with the row's elements."""
    waiting, seen, found = [at], {at}, set[int]()
    while waiting:
        for one in users[waiting.pop()]:
            if one in seen:
                continue
            seen.add(one)
            if ops[one].elements == ops[at].elements and (ops[one].pointwise or ops[one].view):
                waiting.append(one)
            elif ops[one].broadcasts:
                found.update(users[one])
    return seen, found


# What XLA writes to memory of what a layer's backward computes again, instead of within its readers.
#
# Where less is kept of a layer, its backward begins with the layer's forward, and XLA fuses both together anew.
# Nothing
# of a program without the policy shows how: there what is kept is in memory. So both are put together here, as they
# are
# before they are fused, and then fused as XLA does it (``hlo_fused.py``).


_POINTWISE = (ELEMENTWISE - {"bitcast"}) | {"convert"}
_MOVES = frozenset({"slice", "pad", "concatenate", "broadcast", "iota", "transpose"})
"""Opcodes that XLA computes within their readers as well. Parts of weights are in memory, for the barrier."""
_PARTS = frozenset({"slice", "dynamic-slice", "broadcast", "gather"})
"""Opcodes that read as many elements as they make, however large the operand is."""
_READERS = _POINTWISE | _MOVES | {"dynamic-slice", "reduce", "dynamic-update-slice", "gather", "reduce-window"}
_CYCLES = {
    "add": 7, "subtract": 7, "multiply": 3, "divide": 19, "exponential": 79, "exponential-minus-one": 190, "log": 166,
    "log-plus-one": 229, "rsqrt": 75, "sqrt": 75, "tanh": 467, "power": 510, "sine": 958, "cosine": 978, "cbrt": 178,
    "atan2": 431,
}  # fmt: skip
"""Cycles for an element of 32 bits, as XLA measured them on an H100 (hlo_op_profiles_data.h)."""
_FEW = 3
"""Of every other instruction, and of every type that was not measured."""
_BRANCH, _BRANCHES, _WARP = 6, 400, 32
"""Of a concatenation: cycles for an element, those where its parts are not whole warps, and their width."""
_DIMENSION = re.compile(r"\d+")
SMALL = 0.01
"""Share of the largest array from which on a value is looked at. It is the readers of a smaller one that count: XLA
makes one kernel of those that read the same, which is not followed here."""
MOST = 3_000
"""Instructions that are fused; of more it takes too long."""


def written_again(
    flow: Flow, layers: Layers, code: Computation, keeps: Keeps, stacks: Mapping[int, int], names: Iterable[str]
) -> dict[int, int]:
    """Values by number in ``Flow`` that XLA would write, each with the first of those that are the same.

    ``code``: what runs the backward, ``names``: those of its instructions that are the backward, ``stacks``: arrays of
    what was kept of all layers, and what one layer puts there. Without what products and loops read, which is in memory
    anyway.
    """
    found = _Together(flow, keeps, stacks)
    for name in names:
        found.take(code, code.by_name[name])
    if len(found.ops) > MOST:
        return {}
    readers = written(found.ops)
    gone = merged(found.ops, readers) | normalized(found.ops)
    least = SMALL * max((op.bytes for op in found.ops), default=0)
    kinds = {found.kinds[at] for at in readers if found.is_free(at) and at not in gone and found.ops[at].bytes >= least}
    first: dict[int, int] = {}
    numbers: dict[int, int] = {}
    for number, value in enumerate(flow.values):
        known = not value.names and value.computation.name in layers.within and found.sames.source(number) == number
        if known and value.instruction.shape.dims and found.sames.of(number) in kinds:
            numbers[number] = first.setdefault(found.sames.of(number), number)
    return numbers


class _Together:
    """Instructions of the backward and of what it reads of the forward, each once, as before they are fused."""

    def __init__(self, flow: Flow, keeps: Keeps, stacks: Mapping[int, int]) -> None:
        self._flow = flow
        self._keeps = keeps
        self.sames = Sames(flow, stacks)
        self.ops: list[Op] = []
        self.kinds: list[int] = []
        """By place in ``ops``: the number of ``sames``; -1 of views."""
        self._places: dict[int, int] = {}
        self._views: dict[tuple[int, tuple[int, ...]], int] = {}
        self._bound: set[int] = set()
        """Places of what a product or a loop reads."""

    def is_free(self, at: int) -> bool:
        """Whether it is up to XLA to write it."""
        return self.kinds[at] >= 0 and self.ops[at].produces and at not in self._bound

    def take(self, code: Computation, one: Instruction) -> None:
        """All that an instruction of the backward makes, and what that is computed from."""
        if one.opcode != "fusion":
            self._place(self._flow.numbers[code.name, one.name])
            return
        inside = self._flow.module.computations[one.called[0]]
        for name in inside.root.operands if inside.root.opcode == "tuple" else (inside.root.name,):
            self._place(self._flow.numbers[inside.name, name])

    def _place(self, number: int) -> None:
        waiting, opened = [self.sames.source(number)], set[int]()
        while waiting:
            one = waiting[-1]
            kind = self.sames.of(one)
            if kind in self._places:
                waiting.pop()
                continue
            behind = [] if self._is_held(one) else [self.sames.source(each) for each in self._operands(one)]
            missing = [each for each in behind if self.sames.of(each) not in self._places]
            if missing and kind not in opened:
                opened.add(kind)
                waiting += missing
                continue
            self._add(one, kind)
            waiting.pop()

    def _is_held(self, number: int) -> bool:
        """It is in memory: handed on by loops, an argument, or what the policy keeps."""
        value = self._flow.values[number]
        if value.carried or value.instruction.opcode == "parameter" or self._keeps(number):
            return True
        return bool(value.names) and value.instruction.opcode != "get-tuple-element"

    def _operands(self, number: int) -> tuple[int, ...]:
        value = self._flow.values[number]
        numbers = value.operands
        if value.instruction.opcode in ("while", "get-tuple-element"):
            numbers = self._begins(number)
        return tuple(one for one in numbers if self._flow.opcode(one) not in ("constant", "tuple"))

    def _begins(self, number: int) -> tuple[int, ...]:
        """What a loop begins with."""
        inside = self._flow.values[number].computation
        loop = self._flow.values[number].instruction
        while loop.opcode == "get-tuple-element":
            loop = inside.by_name[loop.operands[0]]
        start = inside.by_name[loop.operands[0]] if loop.opcode == "while" else loop
        if start.opcode != "tuple":
            return ()
        return tuple(self._flow.numbers[inside.name, name] for name in start.operands)

    def _add(self, number: int, kind: int) -> None:
        one = self._flow.values[number].instruction
        held = self._is_held(number)
        operands: dict[int, float] = {}
        for operand in () if held else self._operands(number):
            if self.sames.of(operand) not in self._places:
                continue  # a value that leads back to itself
            at, view = self._places[self.sames.of(operand)], self._seen_as(operand)
            if one.opcode not in _READERS:
                self._bound.add(at)
            share = one.shape.elements / max(self.ops[view].elements, 1) if one.opcode in _PARTS else 1.0
            if one.opcode == "dynamic-update-slice" and not operands:
                share = 0.0
            operands.setdefault(view, share)
        written_part = (
            self._flow.values[number].operands[1] if one.opcode == "dynamic-update-slice" and not held else number
        )
        shape = self._flow.values[written_part].instruction.shape
        cycles, widths = self._work(number, len(operands))
        self._places[kind] = len(self.ops)
        self.kinds.append(kind)
        self.ops.append(
            Op(
                operands=tuple(operands),
                uses=tuple(share * width for share, width in zip(operands.values(), widths, strict=True)),
                elements=max(shape.elements, 1),
                bytes=shape.bytes,
                cycles=0 if held else cycles,
                pointwise=one.opcode in _POINTWISE,
                produces=not held and one.opcode in _POINTWISE | _MOVES,
                consumes=not held and one.opcode in _READERS,
                reduces=not held and one.opcode == "reduce",
                broadcasts=not held and one.opcode == "broadcast",
            )
        )

    def _seen_as(self, operand: int) -> int:
        """The place of an operand, or of a view of it in other dimensions."""
        at = self._places[self.sames.of(operand)]
        dims = self._flow.values[operand].instruction.shape.dims
        source = self._flow.values[self.sames.source(operand)].instruction.shape.dims
        if dims == source or not dims:
            return at
        if (at, dims) not in self._views:
            self._views[at, dims] = len(self.ops)
            self.kinds.append(-1)
            op = self.ops[at]
            self.ops.append(
                Op(operands=(at,), uses=(1.0,), elements=op.elements, bytes=op.bytes, pointwise=False, view=True)
            )
        return self._views[at, dims]

    def _work(self, number: int, count: int) -> tuple[int, list[float]]:
        """Cycles for all elements, and by operand how much of its reads is idle."""
        one = self._flow.values[number].instruction
        plain = [1.0] * count
        if one.opcode == "concatenate":
            at = int((_DIMENSION.findall(one.attributes.get("dimensions", "")) or ["0"])[0])
            if not at:
                return _BRANCH * one.shape.elements, plain
            sizes = [self._flow.values[each].instruction.shape.dims[at] for each in self._flow.values[number].operands]
            cycles = _BRANCHES if any(size % _WARP for size in sizes) else _BRANCH
            if len(sizes) == count:
                plain = [-(-size // _WARP) * _WARP / size for size in sizes]
            return cycles * one.shape.elements, plain
        if one.opcode == "reduce":
            source = self._flow.values[self._flow.values[number].operands[0]].instruction.shape
            return _CYCLES["add"] * max(source.elements - one.shape.elements, 0), plain
        if one.opcode not in _POINTWISE:
            return 0, plain
        measured = one.shape.dtype in ("f32", "f16")
        return (_CYCLES.get(one.opcode, _FEW) if measured else _FEW) * one.shape.elements, plain
