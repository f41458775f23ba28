"""The tables of one trace from its events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from perfscope.analyzers.readers import (
    STEP_NAMES,
    Columns,
    Lookup,
    call_kind,
    collective_name,
    copy_kind,
    host_memory,
    is_communication,
    join_columns,
    named_steps,
    nesting_order,
    of_names,
    op_above,
    parent_of_call,
    parents,
    reorder,
    span_around,
)
from perfscope.model.documents import perfetto_vocabulary as words
from perfscope.model.documents.perfetto_vocabulary import SLICE_KINDS, Place, place_of
from perfscope.model.trace import TABLES, Rows, SliceKind, TraceBuilder
from perfscope.model.trace.columns import MISSING, Array
from perfscope.plugins.perfetto_files.annotations import Annotations
from perfscope.plugins.perfetto_files.collect import COUNTER, INSTANT, Collector
from perfscope.plugins.perfetto_files.state import Int, Track, Tracks

# Complete events of a file as columns.


class Events:
    """Complete events as columns: begun and ended, instants, samples."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def take(self, rows: Array) -> Events:
        """Return the given rows."""
        return Events({name: values[rows] for name, values in self.columns.items()})

    def __len__(self) -> int:
        return len(self.columns["event"])


# Collectives and XLA instructions: arguments of their kernel, copy or span, or separate events.


Owners = Mapping[str, tuple[Events, Int]]
"""Column that points at the owner -> events of its table, and the row of each of them."""


def collective_rows(arguments: Annotations, owners: Owners, alone: Events, guessed: Columns) -> Columns:
    """Return the table ``collectives``; ``guessed``: rows of kernels without arguments."""
    parts = []
    for owner in ("kernel", "slice"):
        events, rows = owners[owner]
        part = _from_owners(arguments, "collectives", owner, events, rows)
        if part:
            parts.append(part)
    if guessed:
        kernels = np.concatenate([part["kernel"] for part in parts if "kernel" in part] or [np.empty(0, np.int64)])
        rest = ~np.isin(guessed["kernel"], kernels)
        parts.append({name: values[rest] for name, values in guessed.items()})
    if len(alone):
        parts.append({**_times(alone), **arguments.of("collectives", alone["event"])})
    return _sorted(parts)


def hlo_rows(arguments: Annotations, owners: Owners, alone: Events) -> Columns:
    """Return the table ``hlo_ops``."""
    parts = []
    for owner, (events, rows) in owners.items():
        part = _from_owners(arguments, "hlo_ops", owner, events, rows)
        if part:
            parts.append(part)
    if len(alone):
        part = {**_times(alone), **arguments.of("hlo_ops", alone["event"])}
        parts.append({**part, **_ends(arguments, alone["event"], part)})
    return _sorted(parts)


def _from_owners(arguments: Annotations, table: str, owner: str, events: Events, rows: Int) -> Columns:
    """Return rows for the events that carry the table's arguments."""
    chosen = np.flatnonzero(arguments.has(words.ARGUMENTS[table]["name"], events["event"]))
    if not len(chosen):
        return {}
    held = events.take(chosen)
    part = {**_times(held), **arguments.of(table, held["event"]), owner: rows[chosen]}
    if table == "hlo_ops":
        part |= _ends(arguments, held["event"], part)
    return part


def _times(events: Events) -> Columns:
    return {"start_ns": events["time_ns"].copy(), "end_ns": events["end_ns"].copy()}


def _ends(arguments: Annotations, events: Int, part: Columns) -> Columns:
    lasted = arguments.numbers(words.HLO_DURATION, events)
    launch = arguments.numbers(words.HLO_LAUNCH, events)
    return {
        "end_ns": np.where(lasted >= 0, part["start_ns"] + lasted, part["end_ns"]),
        "launch_end_ns": np.where(launch >= 0, part["start_ns"] + launch, MISSING),
    }


def _sorted(parts: list[Columns]) -> Columns:
    if not parts:
        return {}
    columns = join_columns(parts)
    order = np.argsort(columns["start_ns"], kind="stable")
    return {name: values[order] for name, values in columns.items()}


# The threads of a trace, and the names of its counters, from tracks.


class Threads:
    """Rows of ``threads``, made on demand."""

    def __init__(self, tracks: Mapping[int, Track], strings: TraceBuilder, *, own: bool) -> None:
        """``own``: lanes of an export of ours belong to the thread that they were spread from."""
        self._tracks, self._strings, self._own = Tracks(tracks), strings, own
        self._rows: dict[int, int] = {}
        self._names: list[tuple[str, str]] = []
        self._taken: set[tuple[str, str]] = set()

    def of(self, tracks: Int) -> Int:
        """Return the row of the thread of each track."""
        used, inverse = np.unique(tracks, return_inverse=True)
        rows = np.array([self._row(one) for one in used.tolist()], np.int64)
        return rows[inverse] if len(used) else np.empty(0, np.int64)

    def _row(self, uuid: int) -> int:
        track = self._tracks.thread_of(uuid) if self._own else self._tracks.get(uuid)
        result = self._rows.get(track.uuid)
        if result is None:
            result = self._rows[track.uuid] = len(self._names)
            process, thread = self._named(track)
            known = thread
            count = 1
            while (process, known) in self._taken:  # Two tracks of one name are two threads.
                count += 1
                known = f"{thread} ({count})"
            self._taken.add((process, known))
            self._names.append((process, known))
        return result

    def _named(self, track: Track) -> tuple[str, str]:
        process = self._tracks.process_of(track.uuid)
        if self._own:
            host, thread = words.HOST_PROCESS.match(process.process_name), words.HOST_THREAD.match(track.thread_name)
            return host[1] if host else process.process_name, thread[1] if thread else track.thread_name
        of = str(process.pid) if process.pid is not None else process.name or "trace"
        if track.tid is not None:
            return of, track.thread_name or str(track.tid)
        return of, track.name or f"track {track.uuid & 0xFFFFFFFFFFFFFFFF}"

    def counters(self, tracks: Int) -> tuple[Int, Array]:
        """Return the code of each sample's counter, and the factor of its values."""
        used, inverse = np.unique(tracks, return_inverse=True)
        names, scales = [], []
        for one in used.tolist():
            track = self._tracks.get(one)
            name = track.name or f"counter {one & 0xFFFFFFFFFFFFFFFF}"
            names.append(self._strings.code(name))
            scales.append(float(track.unit_multiplier))
        if not names:
            return np.empty(0, np.int64), np.empty(0, np.float64)
        return np.array(names, np.int64)[inverse], np.array(scales, np.float64)[inverse]

    def columns(self) -> Columns:
        """Return the table of the rows made so far."""
        return {
            "process": np.array([self._strings.code(process) for process, _ in self._names], np.int64),
            "thread": np.array([self._strings.code(thread) for _, thread in self._names], np.int64),
        }


class Tables:
    """Builder of the tables; ``rows`` is the result."""

    def __init__(self, collector: Collector, events: Events, *, own: bool, unplaced: Counter[str]) -> None:
        """``own``: the events of one trace in an export of ours."""
        self._collector, self._own, self._unplaced = collector, own, unplaced
        self._strings = collector.strings
        self._arguments = collector.annotations
        self._threads = Threads(collector.tracks, self._strings, own=own)
        self._parts: dict[Place, Events] = self._split(events)
        self.findings = 0
        self.rows: dict[str, Rows] = {}
        none = np.empty(0, np.int64)
        self._by_op_number = Lookup(none, none)

    def _split(self, events: Events) -> dict[Place, Events]:
        used, inverse = np.unique(events["category"], return_inverse=True)
        texts = ["" if code == MISSING else self._strings.strings[code] for code in used.tolist()]
        place_codes = np.array([place_of(text, own=self._own) for text in texts], np.int64)[inverse]
        self._samples = events.take(np.flatnonzero(events["kind"] == COUNTER))
        sample_places = place_codes[events["kind"] == COUNTER]
        self._samples = self._samples.take(np.flatnonzero(sample_places != Place.DRAWN))
        rest = events["kind"] != COUNTER
        devices = np.isin(place_codes, [Place.KERNEL, Place.COPY, Place.SYNC])
        lost = devices & rest & ~self._has_device(events)
        place_codes[lost] = Place.SLICE  # Without a known device and stream, it is a span.
        marks = (events["kind"] == INSTANT) & ~np.isin(
            place_codes, (Place.MEMORY, Place.SOURCE, Place.DEVICE, Place.FINDING)
        )
        place_codes[marks] = Place.SLICE
        return {place: events.take(np.flatnonzero(rest & (place_codes == place))) for place in Place}

    def _has_device(self, events: Events) -> Array:
        names = (words.DEVICE_ARGUMENT, "agent", "dst_agent")
        return np.asarray(np.logical_or.reduce([self._arguments.has(name, events["event"]) for name in names]))

    def build(self) -> dict[str, Rows]:
        """Return all tables."""
        self.findings = len(self._parts[Place.FINDING])
        row_of_slice = self._slices()
        self._calls()
        self._devices()
        row_of_kernel, row_of_copy = self._work("kernels"), self._work("copies")
        self._syncs()
        order = self._parts
        kernels, copies, slices = order[Place.KERNEL], order[Place.COPY], order[Place.SLICE]
        owners = {
            "kernel": (kernels, row_of_kernel), "copy": (copies, row_of_copy), "slice": (slices, row_of_slice),
        }  # fmt: skip
        self._set("hlo_ops", hlo_rows(self._arguments, owners, order[Place.HLO_OP]))
        self._set("collectives", collective_rows(self._arguments, owners, order[Place.COLLECTIVE], self._guessed()))
        self._memory()
        self._counters()
        self._steps()
        self._set("threads", self._threads.columns())
        return self.rows

    def _set(self, table: str, columns: Columns) -> None:
        self.rows[table] = Rows(TABLES[table], columns)

    def _base(self, events: Events) -> Columns:
        name = np.where(events["name"] == MISSING, self._strings.code(""), events["name"])
        return {"start_ns": events["time_ns"].copy(), "end_ns": events["end_ns"].copy(), "name": name}

    def _by_name(self, names: Int, classify: Any) -> Int:
        return of_names(names, self._strings.strings, classify, np.int64)

    def _slices(self) -> Int:
        """Make the table; return the row of each event in it."""
        events = self._parts[Place.SLICE]
        if not len(events):
            self._set("slices", {})
            return np.empty(0, np.int64)
        columns = self._base(events)
        columns["thread"] = self._threads.of(events["track"])
        columns["kind"] = self._by_name(events["category"], lambda text: SLICE_KINDS.get(text.lower(), SliceKind.OTHER))
        columns |= self._arguments.of("slices", events["event"])
        numbers = self._arguments.numbers(words.OP_ARGUMENT, events["event"])
        order = nesting_order(columns["thread"], columns["start_ns"], columns["end_ns"])
        reorder(columns, order)
        columns["parent"] = parents(columns["thread"], columns["start_ns"], columns["end_ns"])
        self._set("slices", columns)
        numbers = numbers[order]
        self._by_op_number = Lookup(numbers, np.flatnonzero(numbers != MISSING))
        return _inverse(order)

    def _calls(self) -> None:
        events = self._parts[Place.CALL]
        self._call_flows = events["flow"]
        if not len(events):
            self._set("calls", {})
            return
        columns = self._base(events)
        columns["thread"] = self._threads.of(events["track"])
        columns |= self._arguments.of("calls", events["event"])
        guessed = self._by_name(columns["name"], call_kind)
        columns["kind"] = np.where(columns["kind"] == MISSING, guessed, columns["kind"])
        columns["flow"] = events["flow"]
        reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
        self._call_flows = columns.pop("flow")
        columns["parent"] = span_around(self.rows["slices"], columns["thread"], columns["start_ns"], columns["end_ns"])
        self._set("calls", columns)

    def _devices(self) -> None:
        events = self._parts[Place.DEVICE]
        if len(events):
            self._set("devices", self._arguments.of("devices", events["event"]))
            return
        places = (Place.KERNEL, Place.COPY, Place.SYNC)
        seen = [self._arguments.ordinal(self._parts[place]["event"]) for place in places]
        ordinals = np.unique(np.concatenate(seen))
        self._set("devices", {"ordinal": ordinals})

    def _row_of_device(self, ordinals: Int) -> Int:
        known = {ordinal: row for row, ordinal in enumerate(self.rows["devices"]["ordinal"].tolist())}
        used, inverse = np.unique(ordinals, return_inverse=True)
        return np.array([known.get(one, 0) for one in used.tolist()], np.int64)[inverse]

    def _work(self, table: str) -> Int:
        """Make kernels or copies; return the row of each event in the table."""
        events = self._parts[Place.KERNEL if table == "kernels" else Place.COPY]
        columns = {**self._base(events), **self._arguments.of(table, events["event"])}
        columns["device"] = self._row_of_device(self._arguments.ordinal(events["event"]))
        columns["stream"] = self._arguments.stream(events["event"], events["track"])
        columns["flow"] = events["flow"]
        columns["op"] = self._by_op_number(self._arguments.numbers(words.OP_ARGUMENT, events["event"]))
        if table == "kernels":
            recorded = self._arguments.has(words.ARGUMENTS["kernels"]["communication"], events["event"])
            guessed = self._by_name(columns["name"], is_communication)
            columns["communication"] = np.where(recorded, columns["communication"] == 1, guessed)
        else:
            for name, guess in (("kind", copy_kind), ("host_memory", host_memory)):
                guessed = self._by_name(columns["name"], guess)
                columns[name] = np.where(columns[name] == MISSING, guessed, columns[name])
        if not len(columns["start_ns"]):
            self._set(table, {})
            return np.empty(0, np.int64)
        order = np.lexsort((columns["start_ns"], columns["stream"], columns["device"]))
        reorder(columns, order)
        self._link(columns)
        self._set(table, columns)
        return _inverse(order)

    def _link(self, columns: Columns) -> None:
        """Link each row to the call and op that launched it, by arrow, else by correlation id."""
        calls, slices = self.rows["calls"], self.rows["slices"]
        flow = columns.pop("flow")
        by_flow = Lookup(self._call_flows, np.arange(len(calls)))(np.where(flow == 0, MISSING, flow))
        by_id = Lookup(calls["correlation"], np.arange(len(calls)))(columns["correlation"])
        if self._own:
            columns["call"] = by_flow
            return
        call = columns["call"] = np.where(by_id == MISSING, by_flow, by_id)
        labelled = np.flatnonzero((slices["external_id"] >= 0) & (slices["kind"] <= int(SliceKind.ANNOTATION)))
        by_external = Lookup(
            slices["external_id"], labelled[np.argsort(-slices["kind"][labelled].astype(int), kind="stable")]
        )
        op = by_external(columns["external_id"])
        columns["op"] = np.where(op == MISSING, op_above(slices, parent_of_call(calls, call)), op)

    def _syncs(self) -> None:
        events = self._parts[Place.SYNC]
        columns = {**self._base(events), **self._arguments.of("sync_records", events["event"])}
        columns["device"] = self._row_of_device(self._arguments.ordinal(events["event"]))
        calls = self.rows["calls"]
        columns["call"] = Lookup(calls["correlation"], np.arange(len(calls)))(columns["correlation"])
        self._set("sync_records", columns)

    def _guessed(self) -> Columns:
        """Return collectives of a file that is not ours: communication kernels, by their names."""
        kernels = self.rows["kernels"]
        rows = np.flatnonzero(kernels["communication"]) if not self._own else np.empty(0, np.int64)
        if not len(rows):
            return {}
        names = [collective_name(self._strings.strings[code]) for code in kernels["name"][rows].tolist()]
        return {
            "start_ns": kernels["start_ns"][rows], "end_ns": kernels["end_ns"][rows], "kernel": rows,
            "name": np.array([self._strings.code(name) for name in names], np.int64),
        }  # fmt: skip

    def _memory(self) -> None:
        events = self._parts[Place.MEMORY]
        columns = {"time_ns": events["time_ns"], **self._arguments.of("memory", events["event"])}
        columns["address"] = columns["address"].view(np.uint64)
        for name in ("action", "category"):
            columns[name] = np.maximum(columns[name], 0)
        tracks = self._arguments.numbers(words.THREAD_ARGUMENT, events["event"], blank=0)
        known = tracks != 0
        thread = np.full(len(events), MISSING, np.int64)
        thread[known] = self._threads.of(tracks[known])
        columns["thread"] = thread
        columns["op"] = self._by_op_number(self._arguments.numbers(words.OP_ARGUMENT, events["event"]))
        self._set("memory", columns)

    def _counters(self) -> None:
        samples = self._samples
        name, scale = self._threads.counters(samples["track"])
        columns: Columns = {"time_ns": samples["time_ns"], "name": name, "value": samples["value"] * scale}
        self._set("counters", columns)

    def _steps(self) -> None:
        events = self._parts[Place.STEP]
        if self._own:
            columns = {**self._base(events), **self._arguments.of("steps", events["event"])}
            reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
            self._set("steps", columns)
            return
        slices = self.rows["slices"]
        every = np.arange(len(slices))
        self._set("steps", named_steps(slices, every, self._strings.strings, STEP_NAMES))


def _inverse(order: Int) -> Int:
    result = np.empty(len(order), np.int64)
    result[order] = np.arange(len(order))
    return result
