"""Which places hold more and more memory, step by step: the lines and ops behind growth.

At the end of every step the bytes that each place holds are summed: blocks that were never freed, and blocks that were
replaced by larger ones. Five steps and more behind the first are judged by their trend (`facts/memory_growth.py`).
Three or four are too few for that: there a place must hold the same amount more at the end of each single step, and
the program must have run before, so that nothing is made for the first time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.memory.blocks import memory_of, memory_rows
from perfscope.analyzers.memory.growth import LEAST_STEPS, STILL, SURE, WARM_UP, How, step_ends, trend
from perfscope.analyzers.memory.phases import asking_op
from perfscope.analyzers.memory.timelines import memory_timelines
from perfscope.analyzers.ops.recompute import autograd_nodes
from perfscope.analyzers.time.spans import nearest_ancestor
from perfscope.analyzers.time.steps import step_windows
from perfscope.model.memory import Int64, MemoryPhase, MemoryTimeline, SourceLine, strictly_increasing
from perfscope.model.trace import MISSING, SliceKind, Trace
from perfscope.model.trace.tables import MemoryCategory

FEWEST_STEPS = 3
"""Steps that must agree where a trend cannot be taken: a variable that is replaced in the next step holds one block at
the end of each, and one that swaps two buffers holds two."""
SETTLED_STEP = 2
"""Number of the first step that a short recording may begin with: optimizer state, caches and autotuning are made in
the steps before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakingPlace:
    """One line, or one op where no line is known, that holds more at the end of every step."""

    line: SourceLine | None
    op: str | None
    module: str | None
    category: MemoryCategory
    """Of its largest block."""
    frame: int | None
    """Innermost frame of that block's stack (row of ``frames``), where stacks of allocations were recorded."""
    bytes_per_step: int
    held_bytes: Int64
    """At the end of each judged step."""
    blocks: int
    """Held at the end of the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLeaks:
    """Growth of one memory and who is behind it."""

    timeline: MemoryTimeline
    how: How
    steps: int
    """Judged ones."""
    by_trend: bool
    """Else by amounts that are the same in each of a few steps."""
    live_bytes: Int64
    """In use at the end of each judged step."""
    slope_bytes: float
    """Growth a step."""
    growing: bool
    places: tuple[LeakingPlace, ...]
    """Those that grow, most bytes a step first."""


def memory_leaks(trace: Trace) -> dict[tuple[str, str], MemoryLeaks]:
    """By space and label of the memory: its growth, where enough steps are known to judge it."""
    judged = (one for one in trace.fact(memory_timelines) if one.space != "program" and not one.of_driver)
    found = {(one.space, one.label): _judged(trace, one) for one in judged}
    return {key: leaks for key, leaks in found.items() if leaks is not None}


def leaks_of(trace: Trace, timeline: MemoryTimeline) -> MemoryLeaks | None:
    """Growth of ``timeline``; None where too few steps are known to judge it."""
    return trace.fact(memory_leaks).get((timeline.space, timeline.label))


def _judged(trace: Trace, timeline: MemoryTimeline) -> MemoryLeaks | None:
    known = step_ends(trace, timeline)
    if known is None:
        return None
    how, ends = known
    settled = _settled(timeline.of(trace), how)
    by_trend = len(ends) - WARM_UP >= LEAST_STEPS
    if not by_trend and (len(ends) < FEWEST_STEPS or not settled):
        return None
    judged = ends[WARM_UP:] if by_trend else ends
    curve = timeline.live()
    live = curve.bytes[np.maximum(np.searchsorted(curve.positions, judged, side="left") - 1, 0)]
    slope, _ = trend(live)
    grows = _by_trend if by_trend else _each_step
    places = _places(timeline.of(trace), timeline, judged, by_trend=by_trend)
    # of few steps the whole need not grow evenly: the places must
    growing = bool(grows(live)) if by_trend else bool(places) and bool((np.diff(live) > 0).all())
    return MemoryLeaks(
        timeline=timeline,
        how=how,
        steps=len(judged),
        by_trend=by_trend,
        live_bytes=live,
        slope_bytes=slope,
        growing=growing,
        places=places,
    )


def left_behind(trace: Trace, timeline: MemoryTimeline, ends: Int64) -> tuple[LeakingPlace, ...]:
    """Places that hold, at the last of ``ends``, what was made before it within the recording; most bytes first."""
    groups, rows = _grouped(timeline.of(trace), timeline)
    held = _held(timeline, rows, groups, ends[-1:])
    found = [
        _place(timeline.of(trace), timeline, rows[groups == number], held[number], int(held[number][-1]), ends[-1])
        for number in np.flatnonzero(held[:, -1] > 0).tolist()
    ]
    return tuple(sorted(found, key=lambda place: -place.bytes_per_step))


def _settled(trace: Trace, how: How) -> bool:
    """Whether the recording says that the program had run some steps before."""
    windows = trace.fact(step_windows)
    return how == "recorded" and bool(windows.count) and int(windows.numbers.min()) >= SETTLED_STEP


def _by_trend(held: Int64) -> bool:
    slope, sure = trend(held)
    late, _ = trend(held[len(held) // 2 :])
    return slope > 0 and sure >= SURE and late >= STILL * slope


def _each_step(held: Int64) -> bool:
    change = np.diff(held)
    return bool(change[0] > 0) and bool((change == change[0]).all())


def _places(trace: Trace, timeline: MemoryTimeline, ends: Int64, *, by_trend: bool) -> tuple[LeakingPlace, ...]:
    groups, rows = _grouped(trace, timeline)
    held = _held(timeline, rows, groups, ends)
    grows = _by_trend if by_trend else _each_step
    found = []
    for number in np.flatnonzero(held[:, -1] > held[:, 0] if held.size else np.empty(0, bool)).tolist():
        if grows(held[number]):
            slope, _ = trend(held[number])
            found.append(_place(trace, timeline, rows[groups == number], held[number], round(slope), ends[-1]))
    return tuple(sorted(found, key=lambda place: -place.bytes_per_step))


def _place(trace: Trace, timeline: MemoryTimeline, rows: Int64, held: Int64, per_step: int, end: int) -> LeakingPlace:
    blocks = timeline.blocks
    alive = rows[(blocks["start"][rows] < end) & (blocks["end"][rows] >= end)]
    largest = int(alive[np.argmax(blocks["bytes"][alive])])
    line, module, frame = (int(blocks[name][largest]) for name in ("line", "module", "frame"))
    return LeakingPlace(
        line=None if line == MISSING else timeline.lines[line],
        op=asking_op(trace, int(blocks["op"][largest])),
        module=timeline.text(module) or None,
        category=MemoryCategory(int(blocks["category"][largest])),
        frame=None if frame == MISSING else frame,
        bytes_per_step=per_step,
        held_bytes=held,
        blocks=len(alive),
    )


def _grouped(trace: Trace, timeline: MemoryTimeline) -> tuple[Int64, Int64]:
    """``(number of the place, row)`` of all blocks made within the recording whose place is known."""
    blocks = timeline.blocks
    made = np.flatnonzero(~blocks["before"])
    op = np.full(len(made), MISSING, np.int64)
    frame = np.full(len(made), MISSING, np.int64)
    unplaced = blocks["line"][made] == MISSING
    op[unplaced] = _op_names(trace, blocks["op"][made[unplaced]].astype(np.int64))
    frame[unplaced] = blocks["frame"][made[unplaced]]
    key = np.stack((blocks["line"][made].astype(np.int64), op, frame), axis=1)
    known = (key != MISSING).any(axis=1)
    made, key = made[known], key[known]
    if not len(made):
        return np.empty(0, np.int64), made
    _, groups = np.unique(key, axis=0, return_inverse=True)
    return groups.ravel().astype(np.int64), made


def _op_names(trace: Trace, ops: Int64) -> Int64:
    distinct, inverse = np.unique(ops, return_inverse=True)
    numbers: dict[str, int] = {}
    codes = []
    for row in distinct.tolist():
        name = asking_op(trace, int(row))
        codes.append(MISSING if name is None else numbers.setdefault(name, len(numbers)))
    return np.array(codes, np.int64)[inverse] if len(ops) else ops


def _held(timeline: MemoryTimeline, rows: Int64, groups: Int64, ends: Int64) -> npt.NDArray[np.int64]:
    """Bytes that each place holds right before each of ``ends``. Shape (places, ends)."""
    blocks = timeline.blocks
    first = np.searchsorted(ends, blocks["start"][rows], side="right")
    last = np.searchsorted(ends, blocks["end"][rows], side="right")
    change = np.zeros((int(groups.max(initial=-1)) + 1, len(ends) + 1), np.int64)
    np.add.at(change, (groups, first), blocks["bytes"][rows])
    np.add.at(change, (groups, last), -blocks["bytes"][rows])
    held: npt.NDArray[np.int64] = np.cumsum(change, axis=1)[:, :-1]
    return held


# How long activations lie about between the forward and the backward pass that needs them.
#
# An activation is in use until the call that made it returns (the innermost module's, else the op's), and again from
# when the autograd node begins that lets it go. In between it only waits: its bytes times that time is what
# activation
# checkpointing or offloading would save. Where no spans were recorded it waits from when it was made until it is
# freed.


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleActivations:
    """Activations that one module made, over all steps."""

    module: str | None
    blocks: int
    bytes: int
    idle_byte_ns: int
    """Sum of bytes times the time they wait."""
    longest_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Activations of one timeline. Arrays have shape (activations,), in order of ``made``; positions on its axis."""

    timeline: MemoryTimeline
    rows: Int64
    """Of the timeline's ``blocks``."""
    bytes: Int64
    made: Int64
    used_until: Int64
    """The forward call that made it returns."""
    needed_from: Int64
    """The node of the backward pass that lets it go begins."""
    freed: Int64
    by_module: tuple[ModuleActivations, ...]
    """Most idle bytes times time first."""

    @property
    def idle(self) -> Int64:
        """How long each one waits."""
        waits: Int64 = np.maximum(self.needed_from - self.used_until, 0)
        return waits

    @property
    def idle_byte_ns(self) -> int:
        """Sum of bytes times the time they wait, over all steps. Exact: it may be beyond 64 bits."""
        return sum(size * wait for size, wait in zip(self.bytes.tolist(), self.idle.tolist(), strict=True))


def memory_lifetimes(trace: Trace) -> tuple[Lifetimes, ...]:
    """Activations that were made and freed within the recording, for each memory on the clock that has some."""
    found = []
    for timeline in trace.fact(memory_timelines):
        if timeline.axis == "ns" and not timeline.of_driver:
            lifetimes = _lifetimes(timeline.of(trace), timeline)
            if len(lifetimes.rows):
                found.append(lifetimes)
    return tuple(found)


def _lifetimes(trace: Trace, timeline: MemoryTimeline) -> Lifetimes:
    blocks = timeline.blocks
    rows = np.flatnonzero(
        (blocks["category"] == MemoryCategory.ACTIVATION)
        & (blocks["phase"] == MemoryPhase.FORWARD)
        & ~blocks["before"]
        & ~blocks["after"]
    )
    made, freed, size = (blocks[name][rows].astype(np.int64) for name in ("start", "end", "bytes"))
    until = np.clip(_call_end(trace, blocks["op"][rows].astype(np.int64), made), made, freed)
    needed = np.clip(_node_start(trace, timeline, freed), until, freed)
    return Lifetimes(
        timeline=timeline,
        rows=rows,
        bytes=size,
        made=made,
        used_until=until,
        needed_from=needed,
        freed=freed,
        by_module=_by_module(timeline, blocks["module"][rows], size, needed - until),
    )


def _call_end(trace: Trace, ops: Int64, made: Int64) -> Int64:
    slices = trace.rows["slices"]
    if not len(slices):
        return made
    codes = [code for code, text in enumerate(trace.strings) if text.startswith("nn.Module: ")]
    calls = np.isin(slices["name"], codes) & (slices["kind"] == SliceKind.PYTHON)
    around = nearest_ancestor(trace, ops, calls)
    around = np.where(around == MISSING, ops, around)
    return np.where(around == MISSING, made, slices["end_ns"][around])


def _node_start(trace: Trace, timeline: MemoryTimeline, freed: Int64) -> Int64:
    slices, memory = trace.rows["slices"], trace.rows["memory"]
    if not len(slices):
        return freed
    events = memory_rows(trace, "memory", memory_of(timeline))
    at = strictly_increasing(memory["time_ns"][events])
    index = np.minimum(np.searchsorted(at, freed), len(at) - 1)
    ops = np.where(at[index] == freed, memory["op"][events[index]], MISSING).astype(np.int64)
    node = nearest_ancestor(trace, ops, trace.fact(autograd_nodes))
    return np.where(node == MISSING, freed, slices["start_ns"][node])


def _by_module(timeline: MemoryTimeline, modules: Int64, size: Int64, idle: Int64) -> tuple[ModuleActivations, ...]:
    found = []
    for code in np.unique(modules).tolist():
        chosen = modules == code
        waits = idle[chosen].tolist()
        found.append(
            ModuleActivations(
                module=timeline.text(code) or None,
                blocks=int(chosen.sum()),
                bytes=int(size[chosen].sum()),
                idle_byte_ns=sum(one * wait for one, wait in zip(size[chosen].tolist(), waits, strict=True)),
                longest_ns=max(waits),
            )
        )
    return tuple(sorted(found, key=lambda one: -one.idle_byte_ns))
