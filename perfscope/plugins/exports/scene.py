"""A trace as tracks and events for a viewer of timelines. Everything that has a time is included.

Host threads carry slices and runtime calls; streams carry kernels and copies, with waits on a separate lane below.
Collectives and XLA instructions become arguments of their kernel, copy or span; those without one have a track. Arrows
lead from a call to everything it launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from perfscope.analyzers.memory import event_timelines
from perfscope.model.documents import perfetto_vocabulary as words
from perfscope.model.trace import SliceKind, Trace
from perfscope.model.trace.columns import MISSING, Array, Rows
from perfscope.plugins.exports.about import about
from perfscope.plugins.exports.events import (
    Argument,
    Events,
    Texts,
    Track,
    Tracks,
    constant,
    no_flow,
    of_column,
    op_of,
    spread,
    together,
)


class Scene:
    """The tracks of one trace and the events on them."""

    def __init__(self, trace: Trace, tracks: Tracks, *, index: int, label: str) -> None:
        """``index``: number of the trace in the file; ``label``: prefix of its process names."""
        self.trace, self.tracks, self.label = trace, tracks, label
        self.texts = Texts(trace)
        self._base_flow = (index + 1) << 40
        self._rows = trace.rows
        self._processes: dict[str, Track] = {}
        self.threads = self._host_threads()
        self.device_tracks = [self._device(row) for row in range(len(self._rows["devices"]))]
        self.streams: dict[tuple[int, int], Track] = {}
        """(row of the device, stream) -> its track, for streams seen so far."""

    def events(self) -> Iterator[Events]:
        """All events; events of kind ``slices`` that share a track are adjacent."""
        yield about(self.trace, self.texts, self.home(), [track.uuid for track in self.device_tracks])
        yield from self.on_host()
        yield from self._on_devices()
        yield from self._alone("steps", words.STEP, "steps", {})
        yield from memory(self.trace, self.tracks, self.texts, self.home, self.threads)
        yield from counters(self.trace, self.tracks, self.texts, self.home)

    def home(self) -> Track:
        """The process for events without a thread or stream."""
        if self._processes:
            return next(iter(self._processes.values()))
        if self.device_tracks:
            return self.device_tracks[0]
        return self._process("trace")

    def _process(self, name: str) -> Track:
        if name not in self._processes:
            self._processes[name] = self.tracks.process(words.host_name(self.label, name), name)
        return self._processes[name]

    def _host_threads(self) -> list[Track]:
        rows = self._rows["threads"]
        result = []
        for process, thread in zip(rows["process"].tolist(), rows["thread"].tolist(), strict=True):
            name = self.texts.shown(thread)
            result.append(
                self.tracks.thread(self._process(self.texts.shown(process)), words.thread_name(name), wanted=name)
            )
        return result

    def _device(self, row: int) -> Track:
        devices = self._rows["devices"]
        code = int(devices["name"][row])
        product = "" if code == MISSING else self.texts.shown(code)
        return self.tracks.process(words.device_name(self.label, int(devices["ordinal"][row]), product))

    def on_host(self) -> Iterator[Events]:
        """Spans and runtime calls of the host threads."""
        slices, calls = self._rows["slices"], self._rows["calls"]
        parts = []
        if len(slices):
            codes = np.array([self.texts.code(words.SLICE_CATEGORIES[kind]) for kind in SliceKind], np.int64)
            arguments = [*self._columns("slices"), *self._attached("slices", "slice"), self._op_numbers()]
            parts.append(self._spans(slices, self._thread_of(slices), codes[slices["kind"]], arguments))
        if len(calls):
            category = constant(self.texts.code(words.CALL), len(calls))
            parts.append(self._spans(calls, self._thread_of(calls), category, self._columns("calls"), self._starts()))
        if parts:
            yield together(parts)

    def _thread_of(self, rows: Rows) -> Array:
        uuids = np.array([track.uuid for track in self.threads], np.int64)
        return np.asarray(uuids[rows["thread"]])

    def _op_numbers(self) -> Argument:
        """The number of each span that launched or allocated something."""
        size = len(self._rows["slices"])
        named = np.zeros(size, np.bool_)
        for table in ("kernels", "copies", "memory"):
            ops = self._rows[table]["op"]
            named[ops[ops != MISSING]] = True
        return Argument(name=words.OP_ARGUMENT, value="int", values=np.arange(size), present=named)

    def _starts(self) -> Array:
        """Arrow of each call: its own number, if it launched anything in the trace."""
        flow = no_flow(len(self._rows["calls"]))
        for table in ("kernels", "copies"):
            launched = np.unique(self._rows[table]["call"]).astype(np.int64)
            launched = launched[launched != MISSING]
            flow[launched] = (self._base_flow + 1 + launched).astype(np.uint64)
        return flow

    def _on_devices(self) -> Iterator[Events]:
        parts = []
        for table in ("kernels", "copies"):
            rows = self._rows[table]
            if not len(rows):
                continue
            call = rows["call"].astype(np.int64)
            flow = np.where(call == MISSING, 0, self._base_flow + 1 + call).astype(np.uint64)
            owner = {"kernels": "kernel", "copies": "copy"}[table]
            arguments = [*self._columns(table), self._ordinals(rows), op_of(rows), *self._attached(table, owner)]
            parts.append(self._spans(rows, self._stream_of(rows), self._device_category(table), arguments, flow))
        if parts:
            yield together(parts)
        waits = self._rows["sync_records"]
        if len(waits):
            uuids, positions = np.unique(self._stream_of(waits), return_inverse=True)
            below = [self.tracks.plain(self.tracks[uuid], f"{self.tracks[uuid].name} waits") for uuid in uuids.tolist()]
            track = np.array([track.uuid for track in below], np.int64)[positions]
            category = constant(self.texts.code(words.SYNC), len(waits))
            yield self._spans(waits, track, category, [*self._columns("sync_records"), self._ordinals(waits)])
        yield from self._alone("collectives", words.COLLECTIVE, "collectives", {"kernels": "kernel", "slices": "slice"})
        owners = {"kernels": "kernel", "copies": "copy", "slices": "slice"}
        yield from self._alone("hlo_ops", words.HLO_OP, "XLA instructions", owners)

    def _device_category(self, table: str) -> Array:
        rows = self._rows[table]
        if table == "kernels":
            return constant(self.texts.code(words.KERNEL), len(rows))
        copy, memset = self.texts.code(words.COPY), self.texts.code(words.MEMSET)
        memset_kind = 5
        return np.where(rows["kind"] == memset_kind, memset, copy).astype(np.int64)

    def _stream_of(self, rows: Rows) -> Array:
        pairs = np.stack((rows["device"].astype(np.int64), rows["stream"]))
        kinds, positions = np.unique(pairs, axis=1, return_inverse=True)
        uuids = []
        for device, stream in kinds.T.tolist():
            if (device, stream) not in self.streams:
                process = self.device_tracks[device]
                self.streams[device, stream] = self.tracks.thread(process, f"stream {stream}")
            uuids.append(self.streams[device, stream].uuid)
        return np.array(uuids, np.int64)[positions.ravel()]

    def _ordinals(self, rows: Rows) -> Argument:
        ordinals = self._rows["devices"]["ordinal"][rows["device"]]
        return Argument(name=words.DEVICE_ARGUMENT, value="int", values=ordinals)

    def _columns(self, table: str) -> list[Argument]:
        rows = self._rows[table]
        return [self._argument(table, rows, column, name) for column, name in words.ARGUMENTS[table].items()]

    def _argument(self, table: str, rows: Rows, column: str, name: str) -> Argument:
        return worded(table, rows, column, name, self.texts)

    def _attached(self, table: str, owner: str) -> Iterator[Argument]:
        """Columns of the collective and instruction tables for the rows of ``table``."""
        size = len(self._rows[table])
        for other in ("collectives", "hlo_ops"):
            rows = self._rows[other]
            if owner not in rows or not len(rows):
                continue
            chosen = self._owned(other, owner, table)
            part = rows.take(chosen)
            owners = part[owner].astype(np.int64)
            for column, name in words.ARGUMENTS[other].items():
                yield spread(self._argument(other, part, column, name), owners, size)
            if other == "hlo_ops":
                yield from _durations(part, self._rows[table], owners, size)

    def _owned(self, other: str, owner: str, table: str) -> Array:
        """Rows of ``other`` shown on their kernel, copy or span because they are its only one and start with it."""
        rows, target = self._rows[other], self._rows[table]
        held = rows[owner]
        positions = np.maximum(held, 0)
        counts = np.bincount(positions, weights=held != MISSING, minlength=len(target)) if len(target) else np.zeros(1)
        fits = (held != MISSING) & (counts[positions] == 1)
        if len(target):
            fits &= rows["start_ns"] == target["start_ns"][positions]
            if other == "collectives":
                fits &= rows["end_ns"] == target["end_ns"][positions]
        return np.flatnonzero(fits)

    def _alone(self, table: str, category: str, title: str, owners: dict[str, str]) -> Iterator[Events]:
        """Rows that are not shown on another event, on a separate track."""
        rows = self._rows[table]
        rest = np.ones(len(rows), np.bool_)
        for target, owner in owners.items():
            rest[self._owned(table, owner, target)] = False
        if not rest.any():
            return
        part = rows.take(np.flatnonzero(rest))
        track = self.tracks.plain(self.home(), title)
        arguments = [self._argument(table, part, column, name) for column, name in words.ARGUMENTS[table].items()]
        if table == "hlo_ops":
            arguments += _durations(part, part, np.arange(len(part)), len(part))
        uuids = constant(track.uuid, len(part))
        yield self._spans(part, uuids, constant(self.texts.code(category), len(part)), arguments)

    def _spans(
        self, rows: Rows, track: Array, category: Array, arguments: list[Argument], flow: Array | None = None
    ) -> Events:
        return Events(
            kind="slices",
            track=track,
            start_ns=rows["start_ns"],
            end_ns=rows["end_ns"],
            name=rows["name"].astype(np.int64),
            category=category,
            flow=no_flow(len(rows)) if flow is None else flow,
            arguments=tuple(arguments),
        )


def worded(table: str, rows: Rows, column: str, name: str, texts: Texts) -> Argument:
    """A column of a table as an argument; numbers of an enumeration become names."""
    values = rows[column]
    named = words.ENUMS.get((table, column))
    if named is None:
        return of_column(name, rows.table.column(column), values)
    codes = np.array([texts.code(item.name.lower()) for item in sorted(named)], np.int64)
    return Argument(name=name, value="text", values=codes[values])


def _durations(part: Rows, target: Rows, owners: Array, size: int) -> Iterator[Argument]:
    """Durations of instructions whose span lacks one, and of the calls that started them."""
    lasted = part["end_ns"] - part["start_ns"]
    differs = part["end_ns"] != target["end_ns"][owners]
    launch = part["launch_end_ns"]
    for name, values, present in (
        (words.HLO_DURATION, lasted, differs),
        (words.HLO_LAUNCH, launch - part["start_ns"], launch != MISSING),
    ):
        if present.any():
            yield spread(Argument(name=name, value="int", values=values, present=present), owners, size)


_TOTALS = (("allocated_bytes", "memory allocated"), ("reserved_bytes", "memory reserved"))


def memory(
    trace: Trace, tracks: Tracks, texts: Texts, home: Callable[[], Track], threads: Sequence[Track]
) -> Iterator[Events]:
    """Allocator events as instants on one track, and their sums as counters."""
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
    """The allocator's own totals if it writes them, else the sum of the blocks in use."""
    rows = trace.rows["memory"]
    described = False
    positions = np.stack((rows["on_device"].astype(np.int64), rows["ordinal"]))
    for on_device, ordinal in np.unique(positions, axis=1).T.tolist():
        where = (f"cuda:{ordinal}" if ordinal != MISSING else "device") if on_device else "host"
        mine = (rows["on_device"] == bool(on_device)) & (rows["ordinal"] == ordinal)
        for column, title in _TOTALS:
            chosen = np.flatnonzero(mine & (rows[column] != MISSING))
            if len(chosen):
                described = True
                track = tracks.counter(home(), f"{title} ({where})", "B")
                yield _counter(track, rows["time_ns"][chosen], rows[column][chosen], texts)
    if described:
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
    """The samples of each counter, one track per counter."""
    rows = trace.rows["counters"]
    if not len(rows):
        return
    codes, positions = np.unique(rows["name"], return_inverse=True)
    made = [tracks.counter(home(), texts.shown(code)) for code in codes.tolist()]
    yield Events(
        kind="counters",
        track=np.array([track.uuid for track in made], np.int64)[positions],
        start_ns=rows["time_ns"],
        end_ns=rows["time_ns"],
        name=rows["name"].astype(np.int64),
        category=constant(texts.code(words.COUNTER), len(rows)),
        flow=no_flow(len(rows)),
        value=rows["value"],
    )
