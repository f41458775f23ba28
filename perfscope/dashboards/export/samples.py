"""Allocator events and counters of a trace on tracks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from perfscope.analyzers.memory.blocks import event_timelines
from perfscope.analyzers.readers.perfetto import vocabulary as words
from perfscope.dashboards.export.events import Argument, Events, constant, no_flow, op_of
from perfscope.dashboards.export.texts import Texts
from perfscope.dashboards.export.tracks import Track, Tracks
from perfscope.model.trace import Trace
from perfscope.model.trace.columns import MISSING, Array

_TOTALS = (("allocated_bytes", "memory allocated"), ("reserved_bytes", "memory reserved"))


def memory(
    trace: Trace, tracks: Tracks, texts: Texts, home: Callable[[], Track], threads: Sequence[Track]
) -> Iterator[Events]:
    """Allocator events as instants on one track, and what they sum to as counters that are drawn only."""
    from perfscope.dashboards.export.scene import worded

    rows = trace.rows["memory"]
    if not len(rows):
        return
    size = len(rows)
    actions = ("allocate", "free", "reserve", "release", "free requested", "out of memory", "held before")
    names = np.array([texts.code(action) for action in actions], np.int64)
    arguments = [worded("memory", rows, column, name, texts) for column, name in words.ARGUMENTS["memory"].items()]
    uuids = np.array([track.uuid for track in threads] or [0], np.int64)
    known = rows["thread"] != MISSING
    arguments.append(op_of(rows))
    arguments.append(
        Argument(name=words.THREAD_ARGUMENT, value="uint", values=uuids[np.maximum(rows["thread"], 0)], present=known)
    )
    track = tracks.plain(home(), "memory events")
    yield Events(
        kind="instants",
        track=constant(track.uuid, size),
        start_ns=rows["time_ns"],
        end_ns=rows["time_ns"],
        name=names[rows["action"]],
        category=constant(texts.code(words.MEMORY), size),
        flow=no_flow(size),
        arguments=tuple(arguments),
    )
    yield from _totals(trace, tracks, texts, home)


def _totals(trace: Trace, tracks: Tracks, texts: Texts, home: Callable[[], Track]) -> Iterator[Events]:
    """The allocator's own totals where it writes them, otherwise the sum of the blocks in use."""
    rows = trace.rows["memory"]
    told = False
    places = np.stack((rows["on_device"].astype(np.int64), rows["ordinal"]))
    for on_device, ordinal in np.unique(places, axis=1).T.tolist():
        where = (f"cuda:{ordinal}" if ordinal != MISSING else "device") if on_device else "host"
        mine = (rows["on_device"] == bool(on_device)) & (rows["ordinal"] == ordinal)
        for column, title in _TOTALS:
            chosen = np.flatnonzero(mine & (rows[column] != MISSING))
            if len(chosen):
                told = True
                track = tracks.counter(home(), f"{title} ({where})", "B")
                yield _counter(track, rows["time_ns"][chosen], rows[column][chosen], texts)
    if told:
        return
    for timeline in trace.fact(event_timelines):
        if timeline.axis == "ns" or trace.source.events_only:
            curve = timeline.live()
            track = tracks.counter(home(), f"memory in use ({timeline.label})", "B")
            yield _counter(track, curve.positions, curve.bytes, texts)


def _counter(track: Track, time_ns: Array, value: Array, texts: Texts, category: str = words.DRAWN) -> Events:
    return Events(
        kind="counters",
        track=constant(track.uuid, len(time_ns)),
        start_ns=time_ns,
        end_ns=time_ns,
        name=constant(texts.code(track.name), len(time_ns)),
        category=constant(texts.code(category), len(time_ns)),
        flow=no_flow(len(time_ns)),
        value=value.astype(np.float64),
    )


def counters(trace: Trace, tracks: Tracks, texts: Texts, home: Callable[[], Track]) -> Iterator[Events]:
    """The samples of each counter on a track of its own."""
    rows = trace.rows["counters"]
    if not len(rows):
        return
    codes, places = np.unique(rows["name"], return_inverse=True)
    made = [tracks.counter(home(), texts.shown(code)) for code in codes.tolist()]
    yield Events(
        kind="counters",
        track=np.array([track.uuid for track in made], np.int64)[places],
        start_ns=rows["time_ns"],
        end_ns=rows["time_ns"],
        name=rows["name"].astype(np.int64),
        category=constant(texts.code(words.COUNTER), len(rows)),
        flow=no_flow(len(rows)),
        value=rows["value"],
    )
