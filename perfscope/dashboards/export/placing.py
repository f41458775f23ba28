"""Slices spread over lanes, and all events of a track in the order in which they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from perfscope.analyzers.readers.columns import nesting_order
from perfscope.dashboards.export.events import Events
from perfscope.dashboards.export.lanes import lanes, sequence
from perfscope.dashboards.export.tracks import Tracks
from perfscope.model.trace.columns import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Events with the track they lie on, and their order: one entry a begin, end, instant or sample."""

    events: Events
    rows: Array
    """Row of the event that each entry is of."""
    ends: Array
    """Flags: the entry is an end."""


def placed(all_events: Iterable[Events], tracks: Tracks) -> Iterator[Placed]:
    """Each group of events with its lanes made (below the track that they are of) and its order."""
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
            at, ending = sequence(events.start_ns[chosen], events.end_ns[chosen])
            rows.append(chosen[at])
            ends.append(ending)
    return Placed(events=replace(events, track=track), rows=np.concatenate(rows), ends=np.concatenate(ends))
