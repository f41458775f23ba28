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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
