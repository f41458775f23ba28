"""Spans of one track distributed over lanes in which they nest, and the order of begin and end marks in a lane.

Viewers of begin and end marks keep one stack per track: two spans that overlap without nesting would close each other.
Such spans are normal on a device (programmatic dependent launch, copies during kernels); they go to sibling lanes, so
that none is lost. All arrays have shape (n,), times in ns, rows in nesting order: by start, longest first.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.readers import nesting_order
from perfscope.model.trace.columns import Array
from perfscope.plugins.exports.events import Events, Tracks

Int = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MOST_NESTED = 16
"""Most lanes that are tried for a span. A deeper overlap could not be followed by a reader: remaining spans get lanes
without nesting, found by their ends, so that no input takes quadratic time."""


def lanes(start: Int, end: Int) -> Int:
    """Lane of each span, all 0 if the spans nest. Rows of one lane nest."""
    if nest(start, end):
        return np.zeros(len(start), np.int64)
    result = np.empty(len(start), np.int64)
    stacks: list[list[int]] = []
    flat: list[tuple[int, int]] = []
    count = 0
    for row, (begins, ends) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        index = _first_fit(stacks, begins, ends)
        if index is None:
            if flat and flat[0][0] <= begins:
                index = heapq.heappop(flat)[1]
            else:
                index = MOST_NESTED + count
                count += 1
            heapq.heappush(flat, (ends, index))
        result[row] = index
    return result


def _first_fit(stacks: list[list[int]], begins: int, ends: int) -> int | None:
    """The first lane whose open spans contain ``[begins, ends)`` or have ended; ``None`` if ``MOST_NESTED`` do not."""
    for index, stack in enumerate(stacks):
        while stack and stack[-1] <= begins:
            stack.pop()
        if not stack or stack[-1] >= ends:
            stack.append(ends)
            return index
    if len(stacks) < MOST_NESTED:
        stacks.append([ends])
        return len(stacks) - 1
    return None


def nest(start: Int, end: Int) -> bool:
    """True if of any two overlapping spans one contains the other, so that each end closes the latest begin."""
    rows, ends = sequence(start, end)
    depth = np.cumsum(np.where(ends, -1, 1))
    opened = np.empty(len(start), np.int64)
    opened[rows[~ends]] = depth[~ends]
    return bool((depth[ends] + 1 == opened[rows[ends]]).all())


def sequence(start: Int, end: Int) -> tuple[Int, Flags]:
    """``(row, is_end)`` of the begins and ends of one lane in the order they must be written, shapes (2n,).

    Sorted by time; at equal times ends come before begins, inner ends before outer ends, and outer begins before inner
    begins. A span of zero length ends right after its begin.
    """
    count = len(start)
    brief = end == start
    lasting = np.flatnonzero(~brief)
    # by end; for equal ends the later row first, because it is inside the earlier one
    closing = lasting[::-1][np.argsort(end[lasting][::-1], kind="stable")]
    closes = end[closing]
    rows = np.empty(count + len(closing), np.int64)
    ends = np.zeros(len(rows), np.bool_)
    rows[np.arange(count) + np.searchsorted(closes, start, side="right")] = np.arange(count)
    positions = np.arange(len(closing)) + np.searchsorted(start, closes, side="left")
    rows[positions] = closing
    ends[positions] = True
    if not brief.any():
        return rows, ends
    doubled = ~ends & brief[rows]
    times = 1 + doubled
    last = np.cumsum(times) - 1
    rows, ends = np.repeat(rows, times), np.repeat(ends, times)
    ends[last[doubled]] = True
    return rows, ends


class Placed(Struct, frozen=True, kw_only=True):
    """Events with their tracks, in order: one entry per begin, end, instant or sample."""

    events: Events
    rows: Array
    """Row of the entry's event."""
    ends: Array
    """Flags: the entry is an end."""


def placed(all_events: Iterable[Events], tracks: Tracks) -> Iterator[Placed]:
    """Place each group of events: create its lanes below the track of the events, and compute its order."""
    for events in all_events:
        if not len(events):
            continue
        if events.kind == "slices":
            yield _slices(events, tracks)
        else:
            rows = np.lexsort((events.start_ns, events.track)) if events.kind == "counters" else np.arange(len(events))
            yield Placed(events=events, rows=rows, ends=np.zeros(len(events), np.bool_))


def _slices(events: Events, tracks: Tracks) -> Placed:
    uuids, dense = np.unique(events.track, return_inverse=True)
    order = nesting_order(dense, events.start_ns, events.end_ns)
    edges = np.searchsorted(dense[order], np.arange(len(uuids) + 1))
    track = events.track.copy()
    rows, ends = [], []
    for uuid, low, high in zip(uuids.tolist(), edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        mine = order[low:high]
        lane = lanes(events.start_ns[mine], events.end_ns[mine])
        for number in range(int(lane.max()) + 1):
            chosen = mine[lane == number] if len(mine) else mine
            if number:
                track[chosen] = tracks.plain(tracks[uuid], f"{tracks[uuid].name} ({number + 1})").uuid
            positions, ending = sequence(events.start_ns[chosen], events.end_ns[chosen])
            rows.append(chosen[positions])
            ends.append(ending)
    return Placed(events=replace(events, track=track), rows=np.concatenate(rows), ends=np.concatenate(ends))
