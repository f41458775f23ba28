"""Does memory grow step by step, and which lines hold what was made in each step and never let go.

Live bytes are read at the end of every step. Their slope is the median of all pairwise slopes (Theil and Sen), and
``sure`` the share of pairs of steps in which the later one holds more (Kendall's measure of a trend, 1 for growth in
every step). The first steps are left out: optimizer state, caches and autotuning are made there. What levels off is a
cache and no leak, so the second half of the steps must grow too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from perfscope.analyzers.hlo.scope import is_library
from perfscope.analyzers.memory.categories import memory_phases
from perfscope.analyzers.memory.phases import asking_op
from perfscope.analyzers.memory.sites import stack_phases
from perfscope.analyzers.memory.timelines import memory_timelines
from perfscope.analyzers.time.steps import step_windows
from perfscope.model.memory import Int64, MemoryPhase, MemoryTimeline, SourceLine
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory

WARM_UP = 1
"""Steps left out at the front: lazily made state appears in the first one."""
LEAST_STEPS = 4
"""Steps behind the warm-up that a trend takes: of three, one in six orders rises by chance; of four, one in 24."""
SURE = 0.9
"""Share of pairs of steps that must grow: noise of a few allocations may hide one of ten."""
STILL = 0.5
"""Of the whole slope that the second half must still show; a cache that fills up levels off."""
OFTEN = 0.9
"""Share of the steps that must have left a block behind for its line to be a leak."""
MOST_STEPS = 2000
"""Steps that slopes are taken of, evenly chosen: pairs grow with the square."""

How = Literal["recorded", "optimizer", "periodic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """Blocks of one place that steps made and nothing freed."""

    op: str | None
    module: str | None
    line: SourceLine | None
    category: MemoryCategory
    """Of its largest block."""
    frame: int | None
    """Innermost frame of the stack (row of ``frames``), where stacks of allocations were recorded."""
    bytes_per_step: int
    """Median over the steps behind the warm-up."""
    bytes: int
    blocks: int
    steps: int
    """Steps that left some behind, of the ones looked at."""
    example: int
    """Row of the timeline's ``blocks``: the largest of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryGrowth:
    """What a memory holds at the end of every step."""

    timeline: MemoryTimeline
    how: How
    """How steps are known: recorded, by optimizer steps, or by the period of the allocations."""
    ends: Int64
    """Positions of the ends of the steps. Shape (steps,)."""
    live_bytes: Int64
    """In use at each of them, ``unseen_bytes`` included."""
    warm_up: int
    """Steps at the front that are not judged."""
    slope_bytes: float
    """Growth a step behind the warm-up; 0 with fewer than two such steps."""
    sure: float
    """Share of pairs of steps behind the warm-up whose later one holds more."""
    growing: bool
    """Grows surely, in the second half too, over at least `LEAST_STEPS` steps."""
    leaks: tuple[Leak, ...]
    """Places that left blocks behind in nearly every step, most bytes first; also where ``growing`` is False."""
    steps_left: int | None
    """Steps until the device is full at this slope; None where it does not grow or its size is not recorded."""

    @property
    def judged(self) -> bool:
        """Whether there are enough steps to tell growth from chance."""
        return len(self.ends) - self.warm_up >= LEAST_STEPS


def memory_growth(trace: Trace) -> tuple[MemoryGrowth, ...]:
    """Growth of each memory that has at least two steps on its axis; programs and single moments have none."""
    found = []
    for timeline in trace.fact(memory_timelines):
        known = step_ends(trace, timeline)
        if known is not None:
            found.append(_growth(timeline, *known, trace=timeline.of(trace)))
    return tuple(found)


def step_ends(trace: Trace, timeline: MemoryTimeline) -> tuple[How, Int64] | None:
    """Ends of the steps on a timeline's axis, sorted; None where fewer than two are known."""
    if timeline.space == "program" or timeline.first == timeline.last:
        return None
    recorded = timeline.of(trace)
    windows = recorded.fact(step_windows)
    if timeline.axis == "ns" and windows.count >= 2:
        return ("recorded" if windows.how == "recorded" else "optimizer"), np.sort(windows.ends)
    phases = memory_phases(trace, timeline)
    ends = phases.ends[phases.phase == MemoryPhase.OPTIMIZER]
    if len(ends) >= 2:
        return "optimizer", ends
    ends = _periodic(recorded, timeline)
    return None if len(ends) < 2 else ("periodic", ends)


def _growth(timeline: MemoryTimeline, how: How, ends: Int64, *, trace: Trace) -> MemoryGrowth:
    curve = timeline.live()
    live = curve.bytes[np.maximum(np.searchsorted(curve.positions, ends, side="left") - 1, 0)]
    judged = live[WARM_UP:]
    slope, sure = trend(judged)
    late, _ = trend(judged[len(judged) // 2 :])
    growing = len(judged) >= LEAST_STEPS and slope > 0 and sure >= SURE and late >= STILL * slope
    room = None if timeline.capacity_bytes is None else timeline.capacity_bytes - int(live[-1])
    return MemoryGrowth(
        timeline=timeline,
        how=how,
        ends=ends,
        live_bytes=live,
        warm_up=min(WARM_UP, len(ends)),
        slope_bytes=slope,
        sure=sure,
        growing=growing,
        leaks=_leaks(trace, timeline, ends),
        steps_left=int(max(room, 0) / slope) if growing and room is not None else None,
    )


def trend(values: Int64) -> tuple[float, float]:
    """``(median of the slopes of all pairs, share of pairs that rise)``; ``(0, 0)`` for fewer than two values."""
    places = np.arange(len(values))
    if len(values) > MOST_STEPS:
        places = np.linspace(0, len(values) - 1, MOST_STEPS).astype(np.int64)
    if len(places) < 2:
        return 0.0, 0.0
    earlier, later = np.triu_indices(len(places), 1)
    rise = (values[places[later]] - values[places[earlier]]).astype(np.float64)
    return float(np.median(rise / (places[later] - places[earlier]))), float((rise > 0).mean())


def _leaks(trace: Trace, timeline: MemoryTimeline, ends: Int64) -> tuple[Leak, ...]:
    blocks = timeline.blocks
    step = np.searchsorted(ends, blocks["start"], side="right")
    # what the last step made may be on its way still, and what comes behind it belongs to no step
    looked_at = np.arange(WARM_UP, len(ends) - 1)
    if not len(looked_at):
        return ()
    left = np.flatnonzero(blocks["after"] & ~blocks["before"] & (step >= WARM_UP) & (step < len(ends) - 1))
    op_codes, op_names = _asking_ops(trace, blocks["op"][left].astype(np.int64))
    group = _grouped(op_codes, *(blocks[name][left] for name in ("module", "line", "frame")))
    # how many steps left blocks of a group behind: only few groups do so in nearly all of them
    at = step[left] - WARM_UP
    pairs = np.unique(group * len(looked_at) + at)
    steps_of = np.bincount(pairs // len(looked_at), minlength=1)
    order = np.argsort(group, kind="stable")
    begins = np.searchsorted(group[order], np.arange(len(steps_of) + 1))
    found = []
    for number in np.flatnonzero(steps_of >= max(2, OFTEN * len(looked_at))).tolist():
        of_group = order[begins[number] : begins[number + 1]]
        rows = left[of_group]
        per_step = np.bincount(at[of_group], weights=blocks["bytes"][rows], minlength=len(looked_at))
        steps = int(steps_of[number])
        largest = int(rows[np.argmax(blocks["bytes"][rows])])
        line, module, frame = (int(blocks[name][largest]) for name in ("line", "module", "frame"))
        found.append(
            Leak(
                op=op_names[int(op_codes[of_group[0]])],
                module=timeline.text(module) or None,
                line=None if line == MISSING else timeline.lines[line],
                category=MemoryCategory(int(blocks["category"][largest])),
                frame=None if frame == MISSING else frame,
                bytes_per_step=int(np.median(per_step)),
                bytes=int(blocks["bytes"][rows].sum()),
                blocks=len(rows),
                steps=steps,
                example=largest,
            )
        )
    return tuple(sorted(found, key=lambda leak: -leak.bytes))


def _grouped(*columns: npt.NDArray[Any]) -> Int64:
    """A number from 0 for each distinct row of the columns."""
    number = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        _, number = np.unique(number * len(values) + codes, return_inverse=True)
    return number.astype(np.int64)


def _asking_ops(trace: Trace, ops: Int64) -> tuple[Int64, list[str | None]]:
    """The name of the op that asked for each block, as a number, and the names."""
    distinct, inverse = np.unique(ops, return_inverse=True)
    numbers: dict[str | None, int] = {}
    codes = [numbers.setdefault(asking_op(trace, int(row)), len(numbers)) for row in distinct.tolist()]
    return np.array(codes, np.int64)[inverse], list(numbers)


def _periodic(trace: Trace, timeline: MemoryTimeline) -> Int64:
    """Where equal allocations come round again at equal numbers of events: once a step, in a loop that repeats itself.

    The rarest allocation (by size and stack) that comes at least ``WARM_UP + LEAST_STEPS`` times, with the same number
    of allocations between most of its neighbours, and in no module's call: the layers of a model repeat as well.
    Without stacks, or where they show no module, nothing tells a layer from a step.
    """
    blocks, phases = timeline.blocks, trace.fact(stack_phases)
    if not (phases == MemoryPhase.FORWARD).any():
        return np.empty(0, np.int64)
    made = np.flatnonzero(~blocks["before"])
    frames = blocks["frame"][made].astype(np.int64)
    kind = _grouped(blocks["bytes"][made], frames)
    _, first, counts = np.unique(kind, return_index=True, return_counts=True)
    order = np.argsort(kind, kind="stable")
    ends = np.cumsum(counts)
    outside = (frames[first] != MISSING) & (phases[frames[first]] == MemoryPhase.UNKNOWN)
    for one in np.argsort(counts, kind="stable").tolist():
        if counts[one] < WARM_UP + LEAST_STEPS or not outside[one]:
            continue
        places = order[ends[one] - counts[one] : ends[one]]
        gaps = np.diff(places)
        if (gaps == np.median(gaps)).mean() >= OFTEN and gaps.min() > 1:
            return np.asarray(blocks["start"][made[places]], np.int64)
    return np.empty(0, np.int64)


# What arrays hold more of behind the traced steps of a JAX program than before them, by the stack that made them.
#
# Measured: two device memory profiles, with nothing queued at either. A step that gives back what it takes has the
# same
# count of each stack at both; one that keeps something has as many more as there were steps between.


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """Buffers of one stack on one device (or several: a profile names each)."""

    on_device: bool
    ordinal: int | None
    stack: tuple[SourceLine, ...]
    """Innermost first, from the user's innermost frame outwards."""
    count_before: int
    count_after: int
    bytes_before: int
    bytes_after: int

    @property
    def grown(self) -> int:
        """Buffers more than before; negative: fewer."""
        return self.count_after - self.count_before

    @property
    def grown_bytes(self) -> int:
        """Bytes more than before."""
        return self.bytes_after - self.bytes_before

    @property
    def place(self) -> SourceLine | None:
        """The user's innermost frame; ``None`` where nothing but libraries is on the stack."""
        return next((one for one in self.stack if not is_library(one.file)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxGrowth:
    """All stacks whose buffers are more or fewer, those that grew by most bytes first."""

    steps: int
    """Steps between the two profiles."""
    bytes_before: int
    bytes_after: int
    stacks: tuple[Growth, ...]

    @property
    def grown_bytes(self) -> int:
        """Bytes more in all: the sum over the stacks."""
        return self.bytes_after - self.bytes_before


_Key = tuple[bool, int, tuple[tuple[str, int, str], ...]]


def jax_growth(trace: Trace) -> JaxGrowth | None:
    """What grew within the traced steps; ``None`` where the two profiles or the steps were not recorded."""
    steps = len(trace.rows["steps"])
    if trace.held_before is None or not steps or not len(trace.rows["held"]):
        return None
    before, after = _buffers(trace.held_before), _buffers(trace)
    none = (0, 0)
    found = [
        Growth(
            on_device=key[0],
            ordinal=None if key[1] == MISSING else key[1],
            stack=tuple(SourceLine(file=file, line=None if line == MISSING else line, function=name)
                        for file, line, name in key[2]),
            count_before=before.get(key, none)[0],
            count_after=after.get(key, none)[0],
            bytes_before=before.get(key, none)[1],
            bytes_after=after.get(key, none)[1],
        )
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    ]  # fmt: skip
    return JaxGrowth(
        steps=steps,
        bytes_before=sum(size for _, size in before.values()),
        bytes_after=sum(size for _, size in after.values()),
        stacks=tuple(sorted(found, key=lambda one: (-one.grown_bytes, -one.grown))),
    )


def _buffers(trace: Trace) -> dict[_Key, tuple[int, int]]:
    """Count and bytes of the buffers, not the programs, by device and stack."""
    held, frames = trace.rows["held"], trace.rows["frames"]
    stacks: dict[int, tuple[tuple[str, int, str], ...]] = {MISSING: ()}

    def stack(row: int) -> tuple[tuple[str, int, str], ...]:
        if row not in stacks:
            walked, at = [], row
            while at != MISSING:
                walked.append((trace.text(int(frames["file"][at])), int(frames["line"][at]),
                               trace.text(int(frames["name"][at]))))  # fmt: skip
                at = int(frames["parent"][at])
            stacks[row] = tuple(walked)
        return stacks[row]

    found: dict[_Key, tuple[int, int]] = {}
    columns = (held[name].tolist() for name in ("on_device", "ordinal", "kind", "frame", "count", "bytes"))
    for on_device, ordinal, kind, frame, count, size in zip(*columns, strict=True):
        if trace.text(kind) != "buffer":
            continue
        key = (on_device, ordinal, stack(frame))
        known = found.get(key, (0, 0))
        found[key] = (known[0] + count, known[1] + size)
    return found
