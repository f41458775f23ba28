"""Does memory grow step by step, and which places hold more and more of it.

Live bytes are read at the end of every step. Their slope is the median of all pairwise slopes (Theil and Sen), and
``sure`` the share of pairs of steps in which the later one holds more (Kendall's measure of a trend, 1 for growth in
every step). The first step is left out: optimizer state, caches and autotuning are made there. What levels off is a
cache and no leak, so the second half of the steps must grow too. Three or four steps are too few for a trend: there
a place must hold the same amount more at the end of each single step, and the program must have run before, so that
nothing is made for the first time.

Places are the lines, or ops without a line, whose own bytes grow: blocks that were never freed, and blocks that were
replaced by larger ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from perfscope.analyzers.memory.categories import memory_phases, memory_timelines
from perfscope.analyzers.memory.holders import peak_held
from perfscope.analyzers.memory.phases import asking_op, asking_ops
from perfscope.analyzers.memory.sites import frame_line
from perfscope.analyzers.time import step_windows
from perfscope.model.live_bytes import NEVER, Int64
from perfscope.model.memory import MemoryPhase, MemoryTimeline, SourceLine
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory

WARM_UP = 1
"""Steps left out at the front: lazily made state appears in the first one."""
LEAST_STEPS = 4
"""Steps after the warm-up that a trend takes: of three, one in six orders rises by chance; of four, one in 24."""
FEWEST_STEPS = 3
"""Steps that must agree where a trend cannot be taken: a variable that is replaced in the next step holds one block at
the end of each, and one that swaps two buffers holds two."""
SETTLED_STEP = 2
"""Number of the first step that a short recording may begin with: optimizer state, caches and autotuning are made in
the steps before it."""
SURE = 0.9
"""Share of pairs of steps that must grow: noise of a few allocations may hide one of ten."""
STILL = 0.5
"""Of the whole slope that the second half must still show; a cache that fills up levels off."""
MOST_STEPS = 40
"""Steps that slopes are taken of, evenly chosen: pairs grow with the square, and 780 of them tell a trend."""


class GrowingPlace(Struct, frozen=True, kw_only=True):
    """One line, or one op where no line is known, that holds more at the end of every step."""

    line: SourceLine | None
    op: str | None
    module: str | None
    category: MemoryCategory
    """Of its largest block."""
    bytes_per_step: int
    held_bytes: Int64
    """At the end of each judged step."""
    blocks: int
    """Held at the end of the last one."""


class MemoryGrowth(Struct, frozen=True, kw_only=True):
    """What a memory holds at the end of every step, and who makes it grow."""

    timeline: MemoryTimeline
    steps: int
    """Known ones, those of the warm-up included."""
    by_trend: bool
    """Else by amounts that are the same in each of a few steps."""
    live_bytes: Int64
    """In use at the end of each judged step, ``unseen_bytes`` included."""
    slope_bytes: float
    """Growth a step."""
    growing: bool
    places: tuple[GrowingPlace, ...]
    """Those that grow, most bytes per step first."""

    @property
    def judged(self) -> int:
        """Steps that were judged."""
        return len(self.live_bytes)


def memory_growth(trace: Trace) -> tuple[MemoryGrowth, ...]:
    """Growth of each memory of which enough steps are known to judge it; programs and single moments have none."""
    grown = (_growth(trace, timeline) for timeline in trace.fact(memory_timelines))
    return tuple(growth for growth in grown if growth is not None)


def growth_of(trace: Trace, timeline: MemoryTimeline) -> MemoryGrowth | None:
    """Growth of ``timeline``, one of the trace's; None where too few steps are known to judge it."""
    return next((growth for growth in trace.fact(memory_growth) if growth.timeline is timeline), None)


def steps_until_full(timeline: MemoryTimeline, per_step: float) -> int | None:
    """Steps until the device is full at that growth (bytes per step); None where its size is not recorded."""
    if timeline.capacity_bytes is None:
        return None
    return int(max(0, timeline.capacity_bytes - peak_held(timeline)) / per_step)


def step_ends(trace: Trace, timeline: MemoryTimeline) -> Int64 | None:
    """Ends of the steps on a timeline's axis, sorted; None where fewer than two are known."""
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
    # of few steps the whole need not grow evenly: the places must
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
    """``(median of the slopes of all pairs, share of pairs that rise)``; ``(0, 0)`` for fewer than two values."""
    positions = np.arange(len(values))
    if len(values) > MOST_STEPS:
        positions = np.linspace(0, len(values) - 1, MOST_STEPS).astype(np.int64)
    if len(positions) < 2:
        return 0.0, 0.0
    earlier, later = np.triu_indices(len(positions), 1)
    rise = (values[positions[later]] - values[positions[earlier]]).astype(np.float64)
    return float(np.median(rise / (positions[later] - positions[earlier]))), float((rise > 0).mean())


def left_behind(trace: Trace, timeline: MemoryTimeline, ends: Int64) -> tuple[GrowingPlace, ...]:
    """Places that hold, at the last of ``ends``, what was made before it within the recording; most bytes first."""
    groups, rows = _grouped(timeline.of(trace), timeline)
    held_bytes = _held(timeline, rows, groups, ends[-1:])
    growing = {number: int(held_bytes[number][-1]) for number in np.flatnonzero(held_bytes[:, -1] > 0).tolist()}
    return _of_groups(timeline.of(trace), timeline, (groups, rows), held_bytes, growing, ends[-1])


def _settled(trace: Trace, timeline: MemoryTimeline) -> bool:
    """Whether the recording says that the program had run some steps before."""
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
    """Those of ``growing`` (number of the place -> bytes per step) as places, most bytes first."""
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
        op=asking_op(trace, int(blocks["op"][largest])),
        module=timeline.text(module) or None,
        category=MemoryCategory(int(blocks["category"][largest])),
        bytes_per_step=per_step,
        held_bytes=held_bytes,
        blocks=len(alive),
    )


def _grouped(trace: Trace, timeline: MemoryTimeline) -> tuple[Int64, Int64]:
    """``(number of the place, row)`` of all blocks made within the recording whose place is known."""
    blocks = timeline.blocks
    made = np.flatnonzero(~blocks["before"])
    op = np.full(len(made), MISSING, np.int64)
    frame = np.full(len(made), MISSING, np.int64)
    unplaced = blocks["line"][made] == MISSING
    op[unplaced] = asking_ops(trace, blocks["op"][made[unplaced]]).codes
    frame[unplaced] = blocks["frame"][made[unplaced]]
    key = np.stack((blocks["line"][made].astype(np.int64), op, frame), axis=1)
    known = (key != MISSING).any(axis=1)
    made, key = made[known], key[known]
    if not len(made):
        return np.empty(0, np.int64), made
    _, groups = np.unique(key, axis=0, return_inverse=True)
    return groups.ravel().astype(np.int64), made


def _held(timeline: MemoryTimeline, rows: Int64, groups: Int64, ends: Int64) -> Int64:
    """Bytes that each place holds right before each of ``ends``. Shape (places, ends)."""
    blocks = timeline.blocks
    first = np.searchsorted(ends, blocks["start"][rows], side="right")
    gone = np.where(blocks["after"][rows], NEVER, blocks["end"][rows])  # the last step may end after the recording
    last = np.searchsorted(ends, gone, side="right")
    change = np.zeros((int(groups.max(initial=-1)) + 1, len(ends) + 1), np.int64)
    np.add.at(change, (groups, first), blocks["bytes"][rows])
    np.add.at(change, (groups, last), -blocks["bytes"][rows])
    held_bytes: Int64 = np.cumsum(change, axis=1)[:, :-1]
    return held_bytes


# What arrays hold more of after the traced steps of a JAX program than before them, by the stack that made them.
#
# Measured: two device memory profiles, with nothing queued at either. A step that gives back what it takes has the
# same count of each stack at both; one that keeps something has as many more as there were steps between.


class GrownStack(Struct, frozen=True, kw_only=True):
    """Buffers that one stack made on one device: what is held after the steps, and how much more than before."""

    place: SourceLine | None
    """The user's innermost frame; ``None`` where nothing but libraries is on the stack."""
    count: int
    bytes: int
    grown: int
    """Buffers more than before; negative: fewer."""
    grown_bytes: int


class JaxGrowth(Struct, frozen=True, kw_only=True):
    """All stacks whose buffers are more or fewer, those that grew by most bytes first."""

    steps: int
    """Steps between the two profiles."""
    bytes_before: int
    bytes_after: int
    stacks: tuple[GrownStack, ...]

    @property
    def grown_bytes(self) -> int:
        """Bytes more in all: the sum over the stacks."""
        return self.bytes_after - self.bytes_before


_Stack = tuple[SourceLine, ...]
"""Innermost frame first."""
_Buffers = dict[tuple[bool, int, _Stack], tuple[int, int]]
"""(on a device, its number, stack) -> count and bytes."""


def jax_growth(trace: Trace) -> JaxGrowth | None:
    """What grew within the traced steps; ``None`` where the two profiles or the steps were not recorded."""
    from perfscope.analyzers.hlo.scope import is_library

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
    """The buffers, not the programs, by device and stack."""
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
