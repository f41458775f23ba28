"""Memory that an allocator reserves without tensors in it: cached, split beyond use, or lost to rounding.

The terms are those of PyTorch's documentation of ``torch.cuda.memory_stats``: ``reserved`` is the memory of the
allocator, ``allocated`` the part in blocks, ``requested`` the size before rounding, ``active`` is in use or waits for
the free of another stream, ``inactive split`` is free space of a segment with other active blocks, so that it cannot be
returned to the driver; whole free segments can (``torch.cuda.empty_cache``, or the allocator itself before it fails).
``fragmentation`` is the share of reserved memory that is not allocated.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.memory.blocks import memory_of, memory_rows
from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.model.live_bytes import Curve, Int64
from perfscope.model.memory import ALLOCATION_ROUNDING, BLOCKS, MemoryTimeline
from perfscope.model.trace import MISSING, Rows, Trace
from perfscope.model.trace.tables import HeldState, MemoryAction

SMALL_BYTES = 1 << 20
"""Limit of block sizes that PyTorch serves from segments of 2 MiB only for such blocks (``kSmallSize`` in
``c10/core/AllocatorConfig.h``).
"""

LEAST_PART = 0.5
"""Share of the request that the free memory must cover; below it the new segment was mostly needed."""


class ReservedMoment(Struct, frozen=True, kw_only=True):
    """Reserved and allocated memory at one moment. Bytes."""

    position: int
    reserved_bytes: int
    allocated_bytes: int
    """Allocated; as requested if the source has only that (`Fragmentation.as_requested`)."""
    requested_bytes: int | None
    """Requested bytes of the blocks in use; None unless recorded for all of them."""
    failed_bytes: int | None = None
    """Size of the failed request at an out-of-memory, if the source has it."""

    @property
    def unused_bytes(self) -> int:
        """Reserved but not allocated."""
        return self.reserved_bytes - self.allocated_bytes


class PoolState(Struct, frozen=True, kw_only=True):
    """The segments of one pool and stream at a snapshot, which no other pool or stream can use. Bytes."""

    pool: str | None
    """None for the default pool."""
    stream: int | None
    kind: str | None
    """``small`` or ``large``: the sizes its segments serve."""
    reserved_bytes: int
    active_bytes: int
    inactive_split_bytes: int
    largest_free_bytes: int

    @property
    def free_bytes(self) -> int:
        """Bytes that are not active."""
        return self.reserved_bytes - self.active_bytes


class Fragmentation(Struct, frozen=True, kw_only=True):
    """Reserved memory of one device."""

    timeline: MemoryTimeline
    peak: ReservedMoment
    """Moment with most reserved memory; of several such moments, the first with most allocated."""
    failures: tuple[ReservedMoment, ...]
    """In the order of ``timeline.out_of_memory``."""
    peak_allocated_bytes: int
    """Largest number of bytes in use: a perfectly packing allocator would reserve as much."""
    as_requested: bool
    """Whether ``allocated_bytes`` of the moments are as requested, because the source lacks rounding."""
    pools: tuple[PoolState, ...]
    """State at the snapshot, most reserved bytes first; empty without one."""

    @property
    def peak_reserved_bytes(self) -> int:
        """Largest number of reserved bytes."""
        return self.peak.reserved_bytes

    @property
    def excess_bytes(self) -> int:
        """Upper bound of the saving by better packing: the peak of reserved memory minus the peak of used memory."""
        return self.peak_reserved_bytes - self.peak_allocated_bytes

    @property
    def largest_free_bytes(self) -> int:
        """Largest free piece at the snapshot, in any pool."""
        return max((pool.largest_free_bytes for pool in self.pools), default=0)

    @property
    def inactive_split_bytes(self) -> int:
        """Free bytes at the snapshot that cannot be returned, because other blocks of their segments are active."""
        return sum(pool.inactive_split_bytes for pool in self.pools)


def memory_fragmentation(trace: Trace) -> tuple[Fragmentation, ...]:
    """Return the fragmentation of each memory whose allocator records its reserved memory."""
    return tuple(
        _fragmentation(timeline.of(trace), timeline, timeline.reserved)
        for timeline in trace.fact(memory_timelines)
        if timeline.reserved is not None and timeline.space != "program" and not timeline.of_driver
    )


def fragmentation_of(trace: Trace, timeline: MemoryTimeline) -> Fragmentation | None:
    """Return the fragmentation of ``timeline``, one of the trace's; None if its reserved memory is unknown."""
    return next(
        (fragmentation for fragmentation in trace.fact(memory_fragmentation) if fragmentation.timeline is timeline),
        None,
    )


def _fragmentation(trace: Trace, timeline: MemoryTimeline, reserved: Curve) -> Fragmentation:
    live = timeline.live()
    made = timeline.blocks["bytes"][~timeline.blocks["before"]]
    requested = timeline.blocks["requested_bytes"][~timeline.blocks["before"]]
    return Fragmentation(
        timeline=timeline,
        peak=_moment(timeline, live, reserved, _fullest(live, reserved)),
        failures=tuple(
            _moment(timeline, live, reserved, position, size)
            for position, size in zip(timeline.out_of_memory, _failed(trace, timeline), strict=True)
        ),
        peak_allocated_bytes=int(live.bytes.max()),
        as_requested=bool(len(made)) and bool((made == requested).all()),
        pools=_pools(trace, timeline),
    )


def _moment(
    timeline: MemoryTimeline, live: Curve, reserved: Curve, position: int, failed: int | None = None
) -> ReservedMoment:
    requested = timeline.blocks["requested_bytes"][timeline.alive_at(position)]
    known = timeline.unseen_bytes == 0 and bool((requested != MISSING).all())
    return ReservedMoment(
        position=position,
        reserved_bytes=int(reserved.at(np.array(position))),
        allocated_bytes=int(live.at(np.array(position))),
        requested_bytes=int(requested.sum()) if known else None,
        failed_bytes=failed,
    )


def _pools(trace: Trace, timeline: MemoryTimeline) -> tuple[PoolState, ...]:
    segments, held_table = trace.rows["segments"], trace.rows["held"]
    chosen = memory_rows(trace, "segments", memory_of(timeline))
    if not len(chosen):
        return ()
    key = np.stack([segments[name][chosen].astype(np.int64) for name in ("pool", "stream", "kind")], axis=1)
    kinds, group = np.unique(key, axis=0, return_inverse=True)
    free = memory_rows(trace, "held", memory_of(timeline))
    free = free[(held_table["state"][free] == HeldState.FREE) & (held_table["segment"][free] != MISSING)]
    pool_of = np.full(len(segments), MISSING, np.int64)
    pool_of[chosen] = group.ravel()
    pools = []
    for number, (pool, stream, kind) in enumerate(kinds.tolist()):
        size, active = (segments[name][chosen[group.ravel() == number]] for name in ("bytes", "active_bytes"))
        pieces = held_table["bytes"][free[pool_of[held_table["segment"][free]] == number]]
        pools.append(
            PoolState(
                pool=trace.text(pool) or None,
                stream=None if stream == MISSING else stream,
                kind=trace.text(kind) or None,
                reserved_bytes=int(size.sum()),
                active_bytes=int(active.sum()),
                inactive_split_bytes=int(np.maximum(size - active, 0)[active > 0].sum()),
                largest_free_bytes=int(pieces.max(initial=0)),
            )
        )
    return tuple(sorted(pools, key=lambda state: -state.reserved_bytes))


def _failed(trace: Trace, timeline: MemoryTimeline) -> list[int | None]:
    """Return the sizes of failed requests, in the order of ``timeline.out_of_memory``."""
    rows = trace.rows["memory"]
    events: Int64 = memory_rows(trace, "memory", memory_of(timeline))
    events = events[rows["action"][events] == MemoryAction.OUT_OF_MEMORY]
    sizes = [int(size) or None for size in np.abs(rows["bytes"][events])]
    return sizes[: len(timeline.out_of_memory)]


def _fullest(live: Curve, reserved: Curve) -> int:
    """Return the position with most reserved memory; of several, the first with most allocated."""
    most = reserved.bytes.max()
    reserved_then = reserved.at(live.positions)
    at_peak = np.flatnonzero(reserved_then == most)
    if not len(at_peak):
        return int(reserved.positions[int(np.argmax(reserved.bytes))])
    return int(live.positions[at_peak[np.argmax(live.bytes[at_peak])]])


# Fragmentation as it happens: reservations from the driver although enough memory was free.
#
# A caching allocator reserves a segment if none of its free blocks is large enough. If its free blocks together would
# suffice, the segment exists because they are apart: between blocks in use, or in the segments of another stream or
# pool. Cached memory that is reused before the next reservation does not count.


class UnneededReserve(Struct, frozen=True, kw_only=True):
    """One reservation while all free pieces of the allocator together would mostly have sufficed."""

    position: int
    reserved_bytes: int
    block_bytes: int
    """Size of the block it was made for."""
    cached_bytes: int
    """Reserved but unused bytes right before."""
    unneeded_bytes: int
    """Part of the request that the free memory would have covered."""
    block: int
    """Row of the timeline's ``blocks`` that caused it."""


def in_use(timeline: MemoryTimeline, *, as_requested: bool) -> Curve:
    """Return the allocated bytes after each change; ``as_requested``: sizes of the blocks are rounded up first."""
    if not as_requested:
        return timeline.live()
    size = -(-timeline.blocks["bytes"].astype(np.int64) // ALLOCATION_ROUNDING) * ALLOCATION_ROUNDING
    return replace(timeline, blocks=Rows(BLOCKS, {**timeline.blocks, "bytes": size})).live()


def unneeded_reserves(timeline: MemoryTimeline, reserved: Curve, live: Curve) -> tuple[UnneededReserve, ...]:
    """Return these reservations, largest first. ``live``: as from `in_use`."""
    grown = np.flatnonzero(np.diff(reserved.bytes) > 0) + 1
    if not len(grown):
        return ()
    positions = reserved.positions[grown]
    size = reserved.bytes[grown] - reserved.bytes[grown - 1]
    used = live.at(positions, before=True)
    cached = reserved.bytes[grown - 1] - used
    made = np.flatnonzero(~timeline.blocks["before"])
    if not len(made):
        return ()
    starts = timeline.blocks["start"][made]  # sorted: blocks are by start
    index = np.searchsorted(starts, positions, side="left")
    known = index < len(made)
    block = made[np.minimum(index, len(made) - 1)]
    requested = timeline.blocks["bytes"][block].astype(np.int64)
    unneeded = np.minimum(requested, cached)
    chosen = np.flatnonzero(
        known & (requested > SMALL_BYTES) & (requested <= size) & (unneeded >= LEAST_PART * requested)
    )
    chosen = chosen[np.argsort(-unneeded[chosen], kind="stable")]
    return tuple(
        UnneededReserve(
            position=int(positions[index]),
            reserved_bytes=int(size[index]),
            block_bytes=int(requested[index]),
            cached_bytes=int(cached[index]),
            unneeded_bytes=int(unneeded[index]),
            block=int(block[index]),
        )
        for index in chosen.tolist()
    )
