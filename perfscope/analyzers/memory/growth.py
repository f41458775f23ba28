"""Growth of memory from step to step, and the places that hold more and more of it.

Live bytes are read at the end of every step. Their slope is the median of all pairwise slopes (Theil and Sen), and
``sure`` is the share of pairs of steps in which the later one holds more (Kendall's measure of a trend, 1 for growth in
every step). The first step is excluded, because optimizer state, caches and autotuning appear in it. Memory that levels
off is a cache and not a leak, so the second half of the steps must grow too. Three or four steps are too few for a
trend: then a place must hold the same additional amount at the end of every step, and the program must have run before,
so that nothing is made for the first time.

Places are the lines, or ops without a line, whose bytes grow: blocks that were never freed, and blocks that were
replaced by larger ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from perfscope.analyzers.memory.categories import memory_phases, memory_timelines
from perfscope.analyzers.memory.holders import peak_held
from perfscope.analyzers.memory.phases import allocating_op, allocating_ops
from perfscope.analyzers.memory.sites import frame_line
from perfscope.analyzers.time import step_windows
from perfscope.model.live_bytes import NEVER, Int64
from perfscope.model.memory import MemoryPhase, MemoryTimeline, SourceLine
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory

WARM_UP = 1
"""Number of first steps that are excluded, because lazily made state appears in the first one."""
LEAST_STEPS = 4
"""Minimum number of steps after the warm-up for a trend: of three, one in six orders rises by chance; of four, one in
24.
"""
FEWEST_STEPS = 3
"""Minimum number of steps that must agree without a trend: a variable that is replaced in the next step holds one block
at the end of each, and one that swaps two buffers holds two.
"""
SETTLED_STEP = 2
"""Minimum number of the first step of a short recording: optimizer state, caches and autotuning appear in the steps
before.
"""
SURE = 0.9
"""Share of pairs of steps that must grow: noise of a few allocations may hide one of ten."""
STILL = 0.5
"""Share of the whole slope that the second half must still have; a cache that fills up levels off."""
MOST_STEPS = 40
"""Maximum number of steps for slopes, evenly spaced: the pairs grow with the square, and 780 are enough for a trend."""

_Stack = tuple[SourceLine, ...]
"""Innermost frame first."""

_Buffers = dict[tuple[bool, int, _Stack], tuple[int, int]]
"""(on a device, its number, stack) -> count and bytes."""


class GrowingPlace(Struct, frozen=True, kw_only=True):
    """One line, or one op without a line, that holds more at the end of every step."""

    line: SourceLine | None
    op: str | None
    module: str | None
    category: MemoryCategory
    """Category of its largest block."""
    bytes_per_step: int
    held_bytes: Int64
    """At the end of each evaluated step."""
    blocks: int
    """Number of blocks held at the end of the last step."""


class MemoryGrowth(Struct, frozen=True, kw_only=True):
    """Memory held at the end of every step, and the places that grow."""

    timeline: MemoryTimeline
    steps: int
    """Number of known steps, including the warm-up."""
    by_trend: bool
    """True for a trend; False for equal amounts in each of a few steps."""
    live_bytes: Int64
    """In use at the end of each evaluated step, including ``unseen_bytes``."""
    slope_bytes: float
    """Growth per step."""
    growing: bool
    places: tuple[GrowingPlace, ...]
    """Growing places, most bytes per step first."""

    @property
    def judged(self) -> int:
        """Number of evaluated steps."""
        return len(self.live_bytes)


def memory_growth(trace: Trace) -> tuple[MemoryGrowth, ...]:
    """Return the growth of each memory with enough known steps; programs and single moments have none."""
    grown = (_growth(trace, timeline) for timeline in trace.fact(memory_timelines))
    return tuple(growth for growth in grown if growth is not None)


def growth_of(trace: Trace, timeline: MemoryTimeline) -> MemoryGrowth | None:
    """Return the growth of ``timeline``, one of the trace's; None with too few known steps."""
    return next((growth for growth in trace.fact(memory_growth) if growth.timeline is timeline), None)


def steps_until_full(timeline: MemoryTimeline, per_step: float) -> int | None:
    """Return the steps until the device is full at that growth (bytes per step); None if its size is not recorded."""
    if timeline.capacity_bytes is None:
        return None
    return int(max(0, timeline.capacity_bytes - peak_held(timeline)) / per_step)


def step_ends(trace: Trace, timeline: MemoryTimeline) -> Int64 | None:
    """Return the sorted ends of the steps on a timeline's axis; None if fewer than two are known."""
    if timeline.space == "program" or timeline.first == timeline.last:
        return None
    windows = timeline.of(trace).fact(step_windows)
    if timeline.axis == "ns" and windows.count >= 2:
        return np.sort(windows.ends)
    phases = memory_phases(trace, timeline)
    ends = phases.ends[phases.phase == MemoryPhase.OPTIMIZER]
    return None if len(ends) < 2 else ends


def _growth(trace: Trace, timeline: MemoryTimeline) -> MemoryGrowth | None:
    ends = step_ends(trace, timeline)
    if ends is None:
        return None
    by_trend = len(ends) - WARM_UP >= LEAST_STEPS
    if not by_trend and (len(ends) < FEWEST_STEPS or not _settled(timeline.of(trace), timeline)):
        return None
    judged = ends[WARM_UP:] if by_trend else ends
    live = timeline.live().at(judged, before=True)
    slope, _ = trend(live)
    growing_places = _places(timeline.of(trace), timeline, judged, by_trend=by_trend)
    # with few steps the total need not grow evenly, but the places must
    growing = _grows_by_trend(live) if by_trend else bool(growing_places) and bool((np.diff(live) > 0).all())
    return MemoryGrowth(
        timeline=timeline,
        steps=len(ends),
        by_trend=by_trend,
        live_bytes=live,
        slope_bytes=slope,
        growing=growing,
        places=growing_places,
    )


def trend(values: Int64) -> tuple[float, float]:
    """Return ``(median slope of all pairs, share of pairs that rise)``; ``(0, 0)`` for fewer than two values."""
    positions = np.arange(len(values))
    if len(values) > MOST_STEPS:
        positions = np.linspace(0, len(values) - 1, MOST_STEPS).astype(np.int64)
    if len(positions) < 2:
        return 0.0, 0.0
    earlier, later = np.triu_indices(len(positions), 1)
    rise = (values[positions[later]] - values[positions[earlier]]).astype(np.float64)
    return float(np.median(rise / (positions[later] - positions[earlier]))), float((rise > 0).mean())


def left_behind(trace: Trace, timeline: MemoryTimeline, ends: Int64) -> tuple[GrowingPlace, ...]:
    """Return the places that hold, at the last of ``ends``, blocks made earlier in the recording; most bytes first."""
    groups, rows = _grouped(timeline.of(trace), timeline)
    held_bytes = _held(timeline, rows, groups, ends[-1:])
    growing = {number: int(held_bytes[number][-1]) for number in np.flatnonzero(held_bytes[:, -1] > 0).tolist()}
    return _of_groups(timeline.of(trace), timeline, (groups, rows), held_bytes, growing, ends[-1])


def _settled(trace: Trace, timeline: MemoryTimeline) -> bool:
    """Whether the program had run some steps before the recording, according to its step numbers."""
    windows = trace.fact(step_windows)
    recorded = timeline.axis == "ns" and windows.count >= 2 and windows.how == "recorded"
    return recorded and int(windows.numbers.min()) >= SETTLED_STEP


def _grows_by_trend(held_bytes: Int64) -> bool:
    slope, sure = trend(held_bytes)
    late, _ = trend(held_bytes[len(held_bytes) // 2 :])
    return slope > 0 and sure >= SURE and late >= STILL * slope


def _each_step(held_bytes: Int64) -> bool:
    change = np.diff(held_bytes)
    return bool(change[0] > 0) and bool((change == change[0]).all())


def _places(trace: Trace, timeline: MemoryTimeline, ends: Int64, *, by_trend: bool) -> tuple[GrowingPlace, ...]:
    groups, rows = _grouped(trace, timeline)
    held_bytes = _held(timeline, rows, groups, ends)
    grows = _grows_by_trend if by_trend else _each_step
    more = np.flatnonzero(held_bytes[:, -1] > held_bytes[:, 0]).tolist() if held_bytes.size else []
    growing = {number: round(trend(held_bytes[number])[0]) for number in more if grows(held_bytes[number])}
    return _of_groups(trace, timeline, (groups, rows), held_bytes, growing, ends[-1])


def _of_groups(
    trace: Trace,
    timeline: MemoryTimeline,
    grouped: tuple[Int64, Int64],
    held_bytes: Int64,
    growing: Mapping[int, int],
    end: int,
) -> tuple[GrowingPlace, ...]:
    """Return the places of ``growing`` (number of the place -> bytes per step), most bytes first."""
    groups, rows = grouped
    order = np.argsort(groups, kind="stable")
    bounds = np.searchsorted(groups[order], np.arange(len(held_bytes) + 1))
    places = [
        _place(trace, timeline, rows[order[bounds[number] : bounds[number + 1]]], held_bytes[number], per_step, end)
        for number, per_step in growing.items()
    ]
    return tuple(sorted(places, key=lambda growing: -growing.bytes_per_step))


def _place(
    trace: Trace, timeline: MemoryTimeline, rows: Int64, held_bytes: Int64, per_step: int, end: int
) -> GrowingPlace:
    blocks = timeline.blocks
    alive = rows[(blocks["start"][rows] < end) & (blocks["after"][rows] | (blocks["end"][rows] >= end))]
    largest = int(alive[np.argmax(blocks["bytes"][alive])])
    line, module = (int(blocks[name][largest]) for name in ("line", "module"))
    return GrowingPlace(
        line=None if line == MISSING else timeline.lines[line],
        op=allocating_op(trace, int(blocks["op"][largest])),
        module=timeline.text(module) or None,
        category=MemoryCategory(int(blocks["category"][largest])),
        bytes_per_step=per_step,
        held_bytes=held_bytes,
        blocks=len(alive),
    )


def _grouped(trace: Trace, timeline: MemoryTimeline) -> tuple[Int64, Int64]:
    """Return ``(number of the place, row)`` of all blocks made within the recording with a known place."""
    blocks = timeline.blocks
    made = np.flatnonzero(~blocks["before"])
    op = np.full(len(made), MISSING, np.int64)
    frame = np.full(len(made), MISSING, np.int64)
    unplaced = blocks["line"][made] == MISSING
    op[unplaced] = allocating_ops(trace, blocks["op"][made[unplaced]]).codes
    frame[unplaced] = blocks["frame"][made[unplaced]]
    key = np.stack((blocks["line"][made].astype(np.int64), op, frame), axis=1)
    known = (key != MISSING).any(axis=1)
    made, key = made[known], key[known]
    if not len(made):
        return np.empty(0, np.int64), made
    _, groups = np.unique(key, axis=0, return_inverse=True)
    return groups.ravel().astype(np.int64), made


def _held(timeline: MemoryTimeline, rows: Int64, groups: Int64, ends: Int64) -> Int64:
    """Return the bytes of each place right before each of ``ends``. Shape (places, ends)."""
    blocks = timeline.blocks
    first = np.searchsorted(ends, blocks["start"][rows], side="right")
    gone = np.where(blocks["after"][rows], NEVER, blocks["end"][rows])  # the last step may end after the recording
    last = np.searchsorted(ends, gone, side="right")
    change = np.zeros((int(groups.max(initial=-1)) + 1, len(ends) + 1), np.int64)
    np.add.at(change, (groups, first), blocks["bytes"][rows])
    np.add.at(change, (groups, last), -blocks["bytes"][rows])
    held_bytes: Int64 = np.cumsum(change, axis=1)[:, :-1]
    return held_bytes


# Growth of arrays over the traced steps of a JAX program, by the stack that made them.
#
# Measured: two device memory profiles, without queued work at either. A step that frees what it allocates has equal
# counts for each stack in both profiles; a step that keeps something has as many more buffers as there were steps
# between.


class GrownStack(Struct, frozen=True, kw_only=True):
    """Buffers that one stack made on one device: the number after the steps, and its increase."""

    place: SourceLine | None
    """The user's innermost frame; ``None`` if only libraries are on the stack."""
    count: int
    bytes: int
    grown: int
    """Increase in the number of buffers; negative for a decrease."""
    grown_bytes: int


class JaxGrowth(Struct, frozen=True, kw_only=True):
    """All stacks whose number of buffers changed, most added bytes first."""

    steps: int
    """Number of steps between the two profiles."""
    bytes_before: int
    bytes_after: int
    stacks: tuple[GrownStack, ...]

    @property
    def grown_bytes(self) -> int:
        """Added bytes, summed over the stacks."""
        return self.bytes_after - self.bytes_before


def jax_growth(trace: Trace) -> JaxGrowth | None:
    """Return the growth within the traced steps; ``None`` if the two profiles or the steps were not recorded."""
    from perfscope.analyzers.hlo import is_library

    steps = len(trace.rows["steps"])
    if trace.held_before is None or not steps or not len(trace.rows["held"]):
        return None
    before, after = _buffers(trace.held_before), _buffers(trace)
    stacks = []
    for key in dict.fromkeys((*before, *after)):
        (old_count, old_bytes), (count, size) = before.get(key, (0, 0)), after.get(key, (0, 0))
        if (old_count, old_bytes) != (count, size):
            line = next((line for line in key[2] if not is_library(line.file)), None)
            stacks.append(
                GrownStack(place=line, count=count, bytes=size, grown=count - old_count, grown_bytes=size - old_bytes)
            )
    return JaxGrowth(
        steps=steps,
        bytes_before=sum(size for _, size in before.values()),
        bytes_after=sum(size for _, size in after.values()),
        stacks=tuple(sorted(stacks, key=lambda grown_stack: (-grown_stack.grown_bytes, -grown_stack.grown))),
    )


def _buffers(trace: Trace) -> _Buffers:
    """Return the buffers, without programs, by device and stack."""
    held_rows, frames = trace.rows["held"], trace.rows["frames"]
    stacks: dict[int, _Stack] = {}

    def stack(row: int) -> _Stack:
        if row not in stacks:
            lines, frame = [], row
            while frame != MISSING:
                lines.append(frame_line(trace, frame))
                frame = int(frames["parent"][frame])
            stacks[row] = tuple(lines)
        return stacks[row]

    buffers: _Buffers = {}
    columns = (held_rows[name].tolist() for name in ("on_device", "ordinal", "kind", "frame", "count", "bytes"))
    for on_device, ordinal, kind, frame, count, size in zip(*columns, strict=True):
        if trace.text(kind) == "buffer":
            key = (on_device, ordinal, stack(frame))
            known = buffers.get(key, (0, 0))
            buffers[key] = (known[0] + count, known[1] + size)
    return buffers
