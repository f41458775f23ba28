"""When an allocator went to the driver although it had enough: what fragmentation is, seen as it happens.

A caching allocator reserves a segment when no free block of its own is large enough. As far as its free blocks together
would have done, the segment is there because they lie apart: between blocks in use, or in the segments of another
stream or pool. Memory that is cached after its use, and used again before anything is reserved, is none of this.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.facts.memory_blocks import memory_of, memory_rows
from perfscope.model.memory import ALLOCATION_ROUNDING, Curve, Int64, MemoryTimeline, pair_events, strictly_increasing
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryAction

SMALL_BYTES = 1 << 20
"""Up to this size PyTorch serves a block from segments of 2 MiB that serve nothing else (``kSmallSize`` in
``c10/core/AllocatorConfig.h``)."""
LEAST_PART = 0.5
"""Of what was asked for, that the free memory must have done: below it the new segment was needed for the most part."""
LOOKED_INTO = 20
"""Reserves whose segments are looked into: as many as a finding has rows of evidence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """The free memory in the allocator's segments at one moment, as addresses tell it. Bytes."""

    free_bytes: int
    largest_bytes: int
    count: int
    other_streams_bytes: int
    """In segments of other streams or pools than the one that asked."""
    between: Int64
    """Rows of the blocks that lie in segments with free memory: what holds the pieces apart. Largest gap first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnneededReserve:
    """One reserve while the free memory of the allocator, all pieces together, would have done for the most part."""

    position: int
    reserved_bytes: int
    asked_bytes: int
    """Of the block it was made for."""
    cached_bytes: int
    """Reserved and not in use right before."""
    unneeded_bytes: int
    """What the free memory would have done of what was asked for."""
    block: int
    """Row of the timeline's ``blocks`` that asked."""
    pieces: Pieces | None
    """None where addresses of segments were not recorded, and for all but the largest reserves."""


def in_use(timeline: MemoryTimeline, *, as_requested: bool) -> Curve:
    """Bytes handed out after each change; ``as_requested``: the blocks' sizes are as asked for and get rounded."""
    curve = timeline.live()
    if not as_requested:
        return curve
    blocks = timeline.blocks
    starts, ends = blocks["start"], blocks["end"]
    size = -(-blocks["bytes"].astype(np.int64) // ALLOCATION_ROUNDING) * ALLOCATION_ROUNDING
    change = np.zeros(len(curve.positions), np.int64)
    np.add.at(change, np.searchsorted(curve.positions, starts), size)
    gone = ~blocks["after"]
    np.add.at(change, np.searchsorted(curve.positions, ends[gone]), -size[gone])
    return Curve(positions=curve.positions, bytes=np.cumsum(change) + timeline.unseen_bytes)


def unneeded_reserves(
    trace: Trace, timeline: MemoryTimeline, reserved: Curve, live: Curve
) -> tuple[UnneededReserve, ...]:
    """Largest first. ``trace``: the one that the timeline's rows are of. ``live``: as `in_use` gives it."""
    grown = np.flatnonzero(np.diff(reserved.bytes) > 0) + 1
    if not len(grown):
        return ()
    at = reserved.positions[grown]
    size = reserved.bytes[grown] - reserved.bytes[grown - 1]
    used = live.bytes[np.maximum(np.searchsorted(live.positions, at, side="left") - 1, 0)]
    cached = reserved.bytes[grown - 1] - used
    made = np.flatnonzero(~timeline.blocks["before"])
    if not len(made):
        return ()
    starts = timeline.blocks["start"][made]  # sorted: blocks are by start
    place = np.searchsorted(starts, at, side="left")
    known = place < len(made)
    block = made[np.minimum(place, len(made) - 1)]
    asked = timeline.blocks["bytes"][block].astype(np.int64)
    unneeded = np.minimum(asked, cached)
    chosen = np.flatnonzero(known & (asked > SMALL_BYTES) & (asked <= size) & (unneeded >= LEAST_PART * asked))
    chosen = chosen[np.argsort(-unneeded[chosen], kind="stable")]
    segments = _Segments(trace, timeline)
    return tuple(
        UnneededReserve(
            position=int(at[index]),
            reserved_bytes=int(size[index]),
            asked_bytes=int(asked[index]),
            cached_bytes=int(cached[index]),
            unneeded_bytes=int(unneeded[index]),
            block=int(block[index]),
            pieces=segments.pieces(int(at[index]), int(block[index])) if rank < LOOKED_INTO else None,
        )
        for rank, index in enumerate(chosen.tolist())
    )


class _Segments:
    """The segments of a device over time: those of the snapshot, and those that the history tells of."""

    def __init__(self, trace: Trace, timeline: MemoryTimeline) -> None:
        self._timeline = timeline
        rows = trace.rows["memory"]
        events = memory_rows(trace, "memory", memory_of(timeline))
        at = strictly_increasing(rows["time_ns"][events])
        moved = np.isin(rows["action"][events], (MemoryAction.RESERVE, MemoryAction.RELEASE))
        events, at = events[moved], at[moved]
        size = np.abs(rows["bytes"][events])
        pairs = pair_events(rows["address"][events], size, rows["action"][events] == MemoryAction.RELEASE)
        source = np.where(pairs.made == MISSING, pairs.freed, pairs.made)
        ended = np.where(pairs.freed == MISSING, pairs.replaced, pairs.freed)
        start = np.where(pairs.made == MISSING, timeline.first, at[source]) if len(at) else at
        end = np.where(ended == MISSING, timeline.last + 1, at[ended]) if len(at) else at
        held = trace.rows["segments"]
        left = memory_rows(trace, "segments", memory_of(timeline))
        known = rows["address"][events[source[ended == MISSING]]] if len(at) else np.empty(0, np.uint64)
        left = left[~np.isin(held["address"][left], known)]
        told = events[source] if len(at) else events
        self.address = np.concatenate((held["address"][left], rows["address"][told])).astype(np.int64)
        self.bytes = np.concatenate((held["bytes"][left], size[source] if len(at) else size)).astype(np.int64)
        self.start = np.concatenate((np.full(len(left), timeline.first), start)).astype(np.int64)
        self.end = np.concatenate((np.full(len(left), timeline.last + 1), end)).astype(np.int64)
        pools = [np.concatenate((held[name][left], rows[name][told])) for name in ("stream", "pool")]
        self.owner = np.stack(pools, axis=1).astype(np.int64)

    def pieces(self, position: int, block: int) -> Pieces | None:
        """What is free right before ``position``, for a block of the timeline that is about to be made."""
        alive = np.flatnonzero((self.start < position) & (self.end >= position))
        if not len(alive):
            return None
        alive = alive[np.argsort(self.address[alive], kind="stable")]
        first, size = self.address[alive], self.bytes[alive]
        blocks = self._timeline.blocks
        rows = np.flatnonzero((blocks["start"] < position) & (blocks["end"] >= position))
        rows = rows[np.argsort(blocks["address"][rows], kind="stable")]
        address = blocks["address"][rows].astype(np.int64)
        taken = -(-blocks["bytes"][rows].astype(np.int64) // ALLOCATION_ROUNDING) * ALLOCATION_ROUNDING
        place = np.searchsorted(first, address, side="right") - 1
        inside = (place >= 0) & (address < (first + size)[np.maximum(place, 0)])
        if not inside.all():
            return None  # segments that nobody told of: their free memory is not known
        edges = [np.empty(0, np.int64)] * len(alive)
        gaps, whose = [], []
        order = np.searchsorted(place, np.arange(len(alive) + 1))
        for number in range(len(alive)):
            within = slice(order[number], order[number + 1])
            stops = np.concatenate((address[within], [first[number] + size[number]]))
            begins = np.concatenate(([first[number]], address[within] + taken[within]))
            edges[number] = np.maximum(stops - begins, 0)
            gaps.append(edges[number])
            whose.append(np.full(len(edges[number]), number))
        every, segment = np.concatenate(gaps), np.concatenate(whose)
        free = every > 0
        asked = np.array([blocks["stream"][block], MISSING], np.int64)
        same = (self.owner[alive] == asked).all(axis=1)
        largest = np.array([int(one.max(initial=0)) for one in edges])
        between = np.concatenate(
            [rows[order[number] : order[number + 1]] for number in np.argsort(-largest) if largest[number]]
            or [np.empty(0, np.int64)]
        )
        return Pieces(
            free_bytes=int(every.sum()),
            largest_bytes=int(every[same[segment]].max(initial=0)),
            count=int(free.sum()),
            other_streams_bytes=int(every[~same[segment]].sum()),
            between=between.astype(np.int64),
        )
