"""A compiled program as tasks on streams: one level per computation; loops and calls are tasks with inner levels.

GPU programs run as in XLA's runtime: one stream of kernels; a collective begins on a communication stream when all
earlier launches are done, and the work after its ``done`` waits for it. A collective that is marked synchronous, or was
never split, blocks everything. A loop with a known trip count does not run its condition. TPU programs are similar,
with copies and collectives parallel to the core.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Bound, Target
from perfscope.analyzers.hlo import (
    FREE,
    Collective,
    Computation,
    Instruction,
    InstructionCost,
    ModuleCost,
    Thunks,
    callees_first,
    collectives_of,
)
from perfscope.analyzers.predict.assumptions import Factors, is_contended
from perfscope.analyzers.predict.collective_time import CollectiveRange, collective_range, ended_by, held_collective
from perfscope.analyzers.predict.kernel_time import cached_bytes, kernel_time
from perfscope.analyzers.predict.spans import NO_TIME, Parts, Played, Queued, Range, Task, play

Class = Literal["product", "memory", "collective", "copy", "library call", "call"]

COMPUTE, COPIES, SIDE, COLLECTIVES, PAIRS, TO_HOST, FROM_HOST = range(7)
"""Streams. The streams named in a thunk sequence follow."""

_RUNS = frozenset({"while", "conditional", "call"})
_HOST = 5
"""Memory space of the host on every target."""


class Piece(Queued, frozen=True, kw_only=True):
    """An instruction that runs; the ends of its ranges, for one run, are two tasks."""

    instruction: Instruction
    cost: InstructionCost
    what: Class
    time: Range
    gap: Range
    bound: Bound
    known: bool
    collective: CollectiveRange | None = None
    contended: bool = False
    """A scatter whose indices may be equal."""
    blocks: bool = False
    """Whether all later work waits for it."""
    inside: tuple[tuple[Level, int], ...] = ()
    """Levels that a loop, branch or call runs, with their numbers of runs."""
    turns: Range = NO_TIME
    """Gaps between the iterations of the loop."""


class Level(Struct, frozen=True, kw_only=True):
    """One run of a computation."""

    computation: Computation
    pieces: tuple[Piece, ...]
    low: Played
    high: Played
    parts: tuple[Parts, Parts]
    """Low and high, with loops and calls replaced by their parts."""
    launches: int
    """Kernels, copies and collectives of one run, counting every iteration of loops."""

    @property
    def time(self) -> Range:
        """Time of one run."""
        return Range(low=self.parts[0].total, high=max(self.parts[0].total, self.parts[1].total))


class Levels:
    """Builds the levels of a module, callees first, each once."""

    def __init__(
        self,
        cost: ModuleCost,
        target: Target,
        factors: Factors,
        thunks: Thunks | None,
        times: Mapping[tuple[str, str], Range] | None = None,
    ) -> None:
        """``thunks``: of the same module, or None. ``times``: instructions with better values than the model's."""
        self._times = times or {}
        self._cost = cost
        self._module = cost.module
        self._target = target
        self._factors = factors
        self._blocks: Mapping[str, int] = {} if thunks is None else thunks.blocks()
        self._streams: Mapping[str, str] = {} if thunks is None else thunks.streams_of(cost.module)
        self._stream_ids: dict[str, int] = {}
        collectives = collectives_of(self._module)
        self._starts = {(collective.computation.name, collective.start.name): collective for collective in collectives}
        self._levels: dict[str, Level] = {}
        self._dones = ended_by(self._module)
        self.collectives = False
        self.between_nodes = False

    @property
    def streams(self) -> Mapping[str, int]:
        """Number of each communication stream named in the thunk sequence."""
        return self._stream_ids

    def entry(self) -> Level:
        """One run of the module. Callees are built before callers, so that deep calls need no recursion."""
        for name in callees_first(self._module, lambda instruction: instruction.opcode in _RUNS):
            self._levels[name] = self._built(self._module.computations[name])
        return self._levels[self._module.entry]

    def _built(self, computation: Computation) -> Level:
        cached = cached_bytes(computation, self._cost, self._target.device.l2_bytes)
        pieces: list[Piece] = []
        begun: dict[str, int] = {}
        pending: set[int] = set()
        last = -1
        for instruction in computation.instructions:
            origin = next((begun[name] for name in instruction.operands[:1] if name in begun), None)
            if origin is not None and instruction.opcode == "async-update":
                begun[instruction.name] = origin
            elif origin is not None and instruction.opcode.endswith("-done"):
                pending.add(origin)
            if (ended := self._dones.get((computation.name, instruction.name))) is not None and ended in begun:
                pending.add(begun[ended])
                continue
            waits = tuple(sorted({*pending, last} - {-1}))
            piece = self._piece(computation, instruction, waits, cached.get(instruction.name, 0))
            if piece is None:
                continue
            better = self._times.get((computation.name, instruction.name))
            if better is not None and piece.what != "call":
                piece = replace(piece, time=better)
            index = len(pieces)
            pieces.append(piece)
            if piece.stream == COMPUTE:
                last = index
                pending.clear()
            elif piece.blocks:
                pending.add(index)
            else:
                begun[instruction.name] = index
        return self._played(computation, tuple(pieces))

    def _piece(
        self, computation: Computation, instruction: Instruction, waits: tuple[int, ...], cached: int
    ) -> Piece | None:
        row = self._cost.by_name.get((computation.name, instruction.name))
        if row is None:
            return None
        if instruction.opcode in _RUNS:
            return self._around(instruction, row, waits)
        collective = self._starts.get((computation.name, instruction.name)) or held_collective(
            self._module, computation, row
        )
        if collective is not None:
            return self._exchange(instruction, row, collective, waits)
        if row.place != "launched" or row.once == FREE:
            return None
        start = instruction.opcode.endswith("-start")
        copy = start and instruction.opcode.startswith(("copy", "slice", "dynamic-slice", "dynamic-update-slice"))
        blocks = self._blocks.get(instruction.name.replace(".", "_").replace("-", "_"))  # as XLA names the kernel
        modelled = kernel_time(
            self._module,
            computation,
            instruction,
            row.once,
            self._target.device,
            self._factors,
            cached=cached,
            blocks=blocks,
        )
        gap = self._factors.gap
        return Piece(
            instruction=instruction,
            cost=row,
            kind="copy" if copy else "compute",
            what="copy" if copy or instruction.opcode == "copy" else _class(instruction, row),
            stream=_copies(row, instruction) if copy else SIDE if start else COMPUTE,
            time=modelled.time,
            gap=Range(low=gap[0], high=gap[1]),
            waits=waits,
            bound=modelled.bound,
            known=modelled.known,
            contended=self._target.platform == "gpu" and is_contended(self._module, instruction),
        )

    def _exchange(
        self, instruction: Instruction, row: InstructionCost, collective: Collective, waits: tuple[int, ...]
    ) -> Piece:
        exchange = collective_range(collective, self._target, self._factors)
        self.collectives = True
        self.between_nodes = self.between_nodes or exchange.nodes > 1
        named = self._streams.get(instruction.name)
        stream = PAIRS if collective.kind == "collective-permute" else COLLECTIVES
        if named is not None:
            stream = self._stream_ids.setdefault(named, FROM_HOST + 1 + len(self._stream_ids))
        blocks = collective.blocks in ("never split into start and done", "marked synchronous")
        return Piece(
            instruction=instruction,
            cost=row,
            kind="communication",
            what="collective",
            stream=stream,
            time=exchange.time,
            gap=NO_TIME,
            waits=waits,
            bound="link" if exchange.known else "unknown",
            known=exchange.known,
            collective=exchange,
            blocks=blocks,
        )

    def _around(self, instruction: Instruction, row: InstructionCost, waits: tuple[int, ...]) -> Piece:
        """A loop, a branch or a call."""
        turns = NO_TIME
        if instruction.opcode == "conditional":
            levels = [self._levels[name] for name in instruction.called]
            # the cheapest branch at the low end, the most expensive at the high end: the levels differ
            chosen = max(levels, key=lambda level: level.time.high)
            inside: tuple[tuple[Level, int], ...] = ((chosen, 1),)
            time = Range(low=min(level.time.low for level in levels), high=chosen.time.high)
        else:
            times = (
                (instruction.trip_count if instruction.trip_count is not None else 1)
                if instruction.opcode == "while"
                else 1
            )
            runs = instruction.called
            if instruction.opcode == "while" and instruction.trip_count is not None and self._target.platform == "gpu":
                runs = instruction.called[1:]
            inside = tuple((self._levels[name], times) for name in runs)
            if instruction.opcode == "while" and instruction.trip_count is None:
                turns = Range(low=self._factors.turn[0], high=self._factors.turn[1])
            time = sum((level.time.times(count) for level, count in inside), start=turns)
        return Piece(
            instruction=instruction,
            cost=row,
            kind="compute",
            what="call",
            stream=COMPUTE,
            time=time,
            gap=NO_TIME,
            waits=waits,
            bound="unknown",
            known=True,
            inside=inside,
            turns=turns,
        )

    def _played(self, computation: Computation, pieces: tuple[Piece, ...]) -> Level:
        low = play([_task(piece, high=False) for piece in pieces])
        high = play([_task(piece, high=True) for piece in pieces])
        low_parts, high_parts = low.parts, high.parts
        launches = 0
        for piece in pieces:
            if piece.what != "call":
                launches += 1
                continue
            launches += sum(level.launches * count for level, count in piece.inside)
            low_parts = low_parts + _made_of(piece, high=False)
            high_parts = high_parts + _made_of(piece, high=True)
        return Level(
            computation=computation, pieces=pieces, low=low, high=high, parts=(low_parts, high_parts), launches=launches
        )


def _task(piece: Piece, *, high: bool) -> Task:
    time, gap = (piece.time.high, piece.gap.high) if high else (piece.time.low, piece.gap.low)
    return Task(kind=piece.kind, stream=piece.stream, duration=time, gap=gap, waits=piece.waits)


def _made_of(piece: Piece, *, high: bool) -> Parts:
    """Parts that a loop or call adds to its enclosing level, in place of its time as one task."""
    total = Parts(gaps=piece.turns.high if high else piece.turns.low)
    for level, count in piece.inside:
        total = total + _held(level, high=high).times(count)
    time = piece.time.high if high else piece.time.low
    if total.total != time:  # the cheapest branch of a conditional: its parts count as compute
        total = Parts(compute=time)
    return replace(total, compute=total.compute - time)


def _held(level: Level, *, high: bool) -> Parts:
    parts = level.parts[1] if high else level.parts[0]
    short = (level.time.high if high else level.time.low) - parts.total
    return replace(parts, gaps=parts.gaps + short) if short else parts


def _copies(row: InstructionCost, instruction: Instruction) -> int:
    """The stream of an asynchronous copy: links to the host carry both directions at once."""
    if not row.once.host_bytes:
        return COPIES
    target = instruction.shape.parts[0] if instruction.shape.parts else instruction.shape
    return TO_HOST if target.memory_space == _HOST else FROM_HOST


def _class(instruction: Instruction, row: InstructionCost) -> Class:
    if row.once.products:
        return "product"
    return "library call" if instruction.opcode == "custom-call" else "memory"
