"""A memory over time at a limited number of positions, for a picture: bytes by category, reserved bytes, and bands.

The axis is divided into many equal parts with two positions each: the maximum and the end. So no maximum is lost, and
the time after a maximum is not drawn as high as it.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from perfscope.analyzers.memory.categories import memory_phases
from perfscope.analyzers.memory.growth import step_ends
from perfscope.analyzers.time import step_windows
from perfscope.model.live_bytes import Curve, Int64, curve
from perfscope.model.memory import MemoryPhase, MemoryTimeline
from perfscope.model.trace import Trace
from perfscope.model.trace.tables import MemoryCategory

MOST_POINTS = 400
"""Maximum number of positions of a picture: one per pixel of a phone, every other one of a report's page."""

MOST_BANDS = 240
"""Maximum number of phases or steps in a picture. More would be narrower than four pixels; then none is drawn, because
a selection would mislead.
"""

SCHEDULE_PARTS = 60
"""Number of equal parts of a program's schedule that have a phase, because instructions of two phases interleave."""


class Band(Struct, frozen=True, kw_only=True):
    """A piece of the axis, half open."""

    name: str
    """A phase in small letters, or the number of a step."""
    start: int
    end: int
    """Behind its last position."""


class MemoryPicture(Struct, frozen=True, kw_only=True):
    """Bytes at each position, valid up to the next one. The sum over ``categories`` and ``unseen_bytes`` is exact."""

    positions: Int64
    """Shape (n,), sorted, n at most `MOST_POINTS`; the first is the timeline's first, and the peak is included."""
    categories: tuple[MemoryCategory, ...]
    bytes: Int64
    """Shape (categories, n)."""
    unseen_bytes: int
    """To be added to the sum of the categories."""
    reserved: Int64 | None
    """Largest reserved bytes from each position to the next; shape (n,)."""
    steps: tuple[Band, ...]
    phases: tuple[Band, ...]
    """By start; repeated forward work is within its backward pass.

    For a program's schedule: the phase whose instructions make most bytes in that part.
    """

    @property
    def total(self) -> Int64:
        """Bytes in use at each position, shape (n,)."""
        total: Int64 = self.bytes.sum(axis=0) + self.unseen_bytes
        return total


def memory_picture(trace: Trace, timeline: MemoryTimeline, points: int = MOST_POINTS) -> MemoryPicture:
    """Return the picture of a timeline derived from ``trace``, with at most ``points`` positions (at least 3)."""
    positions = _chosen(timeline.live(), timeline, points)
    codes = np.unique(timeline.blocks["category"]).tolist()
    start, end, size, category = (timeline.blocks[name] for name in ("start", "end", "bytes", "category"))
    chosen = [category == code for code in codes]
    curves = [curve(start[rows], end[rows], size[rows]).at(positions) for rows in chosen]
    return MemoryPicture(
        positions=positions,
        categories=tuple(MemoryCategory(code) for code in codes),
        bytes=np.array(curves, np.int64).reshape(len(codes), len(positions)),
        unseen_bytes=timeline.unseen_bytes,
        reserved=None if timeline.reserved is None else _highest(timeline.reserved, positions),
        steps=_step_bands(trace, timeline),
        phases=_phase_bands(trace, timeline),
    )


def _chosen(curve: Curve, timeline: MemoryTimeline, points: int) -> Int64:
    parts = max(1, (points - 1) // 2)
    span = timeline.last - timeline.first + 1
    # floats, because positions up to 2**63 times the number of parts would overflow
    part = np.minimum((curve.positions - timeline.first) / span * parts, parts - 1).astype(np.int64)
    begins = np.flatnonzero(np.concatenate(([True], part[1:] != part[:-1])))
    order = np.lexsort((-curve.bytes, part))  # stable: the first of several maxima of each part
    last = np.concatenate((begins[1:], [len(part)])) - 1
    chosen: Int64 = curve.positions[np.unique(np.concatenate(([0], order[begins], last)))]
    return chosen


def _highest(reserved: Curve, positions: Int64) -> Int64:
    """Return the largest value of a step function from each position to the next."""
    values = np.concatenate((reserved.at(positions), reserved.bytes))
    positions_of_values = np.concatenate((positions, reserved.positions))
    order = np.lexsort((np.arange(len(positions_of_values)), positions_of_values))
    positions_of_values, values = positions_of_values[order], values[order]
    inside = positions_of_values >= positions[0]
    begins = np.searchsorted(positions_of_values[inside], positions, side="left")
    highest: Int64 = np.maximum.reduceat(values[inside], begins)
    return highest


def _step_bands(trace: Trace, timeline: MemoryTimeline) -> tuple[Band, ...]:
    windows = timeline.of(trace).fact(step_windows)
    if timeline.axis == "ns" and timeline.space != "program" and windows.count:
        rows = zip(windows.starts.tolist(), windows.ends.tolist(), windows.numbers.tolist(), strict=True)
        return _bands(timeline, [(str(number), start, end) for start, end, number in rows])
    known = step_ends(trace, timeline)
    if known is None:
        return ()
    ends = known.tolist()
    starts = [timeline.first, *ends[:-1]]
    return _bands(
        timeline, [(str(number), start, end) for number, (start, end) in enumerate(zip(starts, ends, strict=True))]
    )


def _phase_bands(trace: Trace, timeline: MemoryTimeline) -> tuple[Band, ...]:
    if timeline.space == "program":
        return _schedule_phases(timeline)
    phases = memory_phases(trace, timeline)
    rows = zip(phases.phase.tolist(), phases.starts.tolist(), phases.ends.tolist(), strict=True)
    named = [(MemoryPhase(phase).name.lower(), start, end) for phase, start, end in rows if phase]
    return _bands(timeline, [*named, *_made_again(timeline)]) or _bands(timeline, named)


def _made_again(timeline: MemoryTimeline) -> list[tuple[str, int, int]]:
    """Return intervals of repeated forward work in the backward pass, each from its first to its last allocation."""
    blocks = timeline.blocks
    made = np.flatnonzero(~blocks["before"])
    again = np.concatenate(([False], blocks["phase"][made] == MemoryPhase.RECOMPUTE, [False]))
    starts = blocks["start"][made]
    begins, ends = np.flatnonzero(again[1:] & ~again[:-1]), np.flatnonzero(again[:-1] & ~again[1:]) - 1
    rows = zip(starts[begins].tolist(), starts[ends].tolist(), strict=True)
    return [(MemoryPhase.RECOMPUTE.name.lower(), start, end + 1) for start, end in rows]


def _schedule_phases(timeline: MemoryTimeline) -> tuple[Band, ...]:
    blocks = timeline.blocks
    made = ~blocks["before"]
    span = timeline.last - timeline.first + 1
    parts = min(SCHEDULE_PARTS, span)
    part = (blocks["start"][made] - timeline.first) * parts // span
    weights = np.zeros((parts, len(MemoryPhase)), np.int64)
    np.add.at(weights, (part, blocks["phase"][made]), blocks["bytes"][made])
    phase = np.where(weights.sum(axis=1) > 0, weights.argmax(axis=1), int(MemoryPhase.UNKNOWN))
    edges = [timeline.first + -(-number * span // parts) for number in range(parts + 1)]
    begins = np.flatnonzero(np.concatenate(([True], phase[1:] != phase[:-1])))
    ends = np.concatenate((begins[1:], [parts]))
    rows = zip(begins.tolist(), ends.tolist(), strict=True)
    named = [(MemoryPhase(int(phase[begin])).name.lower(), edges[begin], edges[end]) for begin, end in rows]
    return _bands(timeline, [band for band in named if band[0] != MemoryPhase.UNKNOWN.name.lower()])


def _bands(timeline: MemoryTimeline, bands: list[tuple[str, int, int]]) -> tuple[Band, ...]:
    """Return the bands within the timeline, in order; empty if there are too many."""
    first, last = timeline.first, timeline.last + 1
    inside = [(name, max(start, first), min(end, last)) for name, start, end in bands if start < last and end > first]
    if len(inside) > MOST_BANDS:
        return ()
    return tuple(
        Band(name=name, start=start, end=end) for name, start, end in sorted(inside, key=lambda band: band[1:])
    )
