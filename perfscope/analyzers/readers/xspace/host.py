"""Planes of the host: spans, runtime calls, allocator events, steps and instructions of the CPU backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from perfscope.analyzers.readers.columns import (
    ColumnBuffer,
    Columns,
    Lookup,
    of_names,
    reorder,
    span_around,
)
from perfscope.analyzers.readers.kineto.categories import call_kind
from perfscope.analyzers.readers.xspace import names
from perfscope.analyzers.readers.xspace.planes import Line, Plane
from perfscope.analyzers.readers.xspace.spans import DROPPED, PERHAPS, nest
from perfscope.model.intervals import numbered
from perfscope.model.trace import TABLES, MemoryAction, Rows, SliceKind, TraceBuilder
from perfscope.model.trace.columns import MISSING, Array
from perfscope.native.xspace import Spans

_ORDINAL = re.compile(r"(\d+)")

_KEY = re.compile(r"(?P<what>.+?) RendezvousKey\{.*?global_devices=\[(?P<devices>[\d, ]*)\]")


# Events of XLA's allocators among the host's spans: GPUs have the allocator's name, TPUs the device.
#
# The totals in an event agree with xprof's memory profile: allocated bytes and those of the programs' stacks are in
# use, their largest sum is the peak of the recording, and the allocator has its own peak since its start.


def events(line: Line, thread: int, freed: Array, chosen: Array, strings: Sequence[str]) -> Columns:
    """Return the columns of table ``memory`` for the chosen events of a line, with positive sizes and ``freed``."""
    codes, allocator = numbered(line.number_of("allocator_name", chosen))
    texts = ["" if code == MISSING else strings[code] for code in codes.tolist()]
    on_device = [bool(text) and not any(side in text.lower() for side in ("host", "cpu")) for text in texts]
    ordinals = [
        int(match[1]) if own and (match := _ORDINAL.search(text)) else MISSING
        for text, own in zip(texts, on_device, strict=True)
    ]
    index, address, peak, allocated, stack, free = (
        line.number_of(name, chosen)
        for name in (
            "index_on_host", "addr", "peak_bytes_in_use", "bytes_allocated", "bytes_reserved", "bytes_available",
        )
    )  # fmt: skip
    fragmentation = line.values()[chosen]
    return {
        "time_ns": line.start_ns[chosen],
        "thread": np.full(len(index), thread, np.int32),
        "on_device": np.array(on_device, bool)[allocator] | (index != MISSING),
        "ordinal": np.where(index != MISSING, index, np.array(ordinals, np.int64)[allocator]),
        "address": np.where(address == MISSING, 0, address).astype(np.uint64),
        "bytes": line.number_of("allocation_bytes", chosen),
        "freed": freed,
        "requested_bytes": line.number_of("requested_bytes", chosen),
        "allocated_bytes": allocated,
        "stack_bytes": stack,
        "limit_bytes": np.where(
            (allocated == MISSING) | (free == MISSING), MISSING, allocated + np.maximum(stack, 0) + free
        ),
        "peak_bytes": peak,
        # Written together with the peak; on the wire a fragmentation of zero is the same as a missing one.
        "fragmentation": np.where(np.isnan(fragmentation) & (peak != MISSING), 0.0, fragmentation),
    }


def with_sizes(columns: Columns) -> tuple[Columns, int]:
    """Return the columns with the action and a negative size of each deallocation, and the number of unknown sizes.

    TPUs write no size there. It is that of the block's allocation, else the fall of the allocator's total since the
    previous event. ``columns`` are in order of time; those of unknown size are left out.
    """
    freed = columns.pop("freed")
    size = columns["bytes"].copy()
    unknown = np.zeros(len(freed), bool)
    held: dict[tuple[bool, int, int], int] = {}
    total: dict[tuple[bool, int], int] = {}
    names = ("on_device", "ordinal", "address", "bytes", "allocated_bytes")
    rows = zip(freed.tolist(), *(columns[name].tolist() for name in names), strict=True)
    for row, (gone, on_device, ordinal, address, requested, allocated) in enumerate(
        rows if (size == MISSING).any() else ()
    ):
        memory = (on_device, ordinal)
        if not gone:
            held[*memory, address] = requested
            unknown[row] = requested == MISSING
        elif requested == MISSING:
            fell = total[memory] - allocated if memory in total and allocated != MISSING else 0
            size[row] = held.pop((*memory, address), fell)
            unknown[row] = size[row] <= 0
        if allocated != MISSING:
            total[memory] = allocated
    columns["bytes"] = np.where(freed, -size, size)
    columns["action"] = np.where(freed, MemoryAction.FREE, MemoryAction.ALLOCATE)
    if not unknown.any():
        return columns, 0
    return {name: values[~unknown] for name, values in columns.items()}, int(unknown.sum())


class _Names(NamedTuple):
    """Facts from the names of a line's events, one entry per metadata id."""

    codes: Array
    kind: Array
    jitted: Array
    end: Array
    memory: Array
    freed: Array
    waits: Array
    meeting: Array


class Host:
    """Collector of the lines of all host planes; ``build`` makes the tables."""

    def __init__(self, pool: TraceBuilder) -> None:
        self._pool = pool
        self._spans: list[Spans] = []
        self._events = 0
        self._calls, self._memory = ColumnBuffer(), ColumnBuffer()
        self._ops, self._ends, self._steps, self._meetings = (
            ColumnBuffer(),
            ColumnBuffer(),
            ColumnBuffer(),
            ColumnBuffer(),
        )

    def add(self, plane: Plane, line: Line) -> None:
        """Add one line of a host plane, which is one thread. Its columns are overwritten."""
        if not len(line):
            return
        process = str(plane.stats.get("process_id", "")) or "host"
        thread = self._pool.thread(process, line.name or str(line.id), line.id)
        known = self._names(plane, line)
        kind = line.by_id(known.kind)
        kind[line.aggregated] = DROPPED
        self._pool.marks["thread pool marks"] += int(np.count_nonzero(kind == DROPPED))
        calls = _shown(line.with_stat("correlation_id"), kind)
        for stat, of in (("step_num", SliceKind.ANNOTATION), ("hlo_op", SliceKind.OP)):
            kind[_shown(line.with_stat(stat), kind)] = of
        ends = _named(line, line.with_stat("_c"), known.end)
        # On TPUs a deallocation has the block but not its size.
        memory = _named(line, _either(line, "allocation_bytes", "addr"), known.memory)
        awaits = self._join_waits(line, known.waits)
        self._pool.marks["end marks of instructions"] += len(ends)
        self._pool.marks["second marks of waits"] += len(awaits)
        for rows in (calls, ends, memory, awaits):
            kind[rows] = DROPPED
        wanted = bool(len(line.with_stat("hlo_op")) or known.meeting.any())
        spans = Spans(thread, line.start_ns, line.end_ns, kind, line.place, known.codes, known.jitted, wanted)
        self._append(self._ends, {"id": line.number_of("_c", ends), "time_ns": line.start_ns[ends]})
        self._append(self._calls, {**_of(spans, calls), "correlation": line.number_of("correlation_id", calls),
                                   "details": line.number_of("memcpy_details", calls)})  # fmt: skip
        if len(memory):
            freed = known.freed[line.place[memory]]
            self._append(self._memory, events(line, thread, freed, memory, self._pool.strings))
        self._add_work(line, spans, known.meeting)
        self._spans.append(spans)
        self._events += len(line)

    def _names(self, plane: Plane, line: Line) -> _Names:
        """Return the code of each name, and facts from it, once per distinct name."""
        texts = [plane.names.get(number, "") for number in line.ids.tolist()]

        def flags(test: Callable[[str], bool]) -> Array:
            return np.array([test(text) for text in texts], bool)

        kind = np.full(len(texts), PERHAPS, np.uint8)
        meeting = flags(lambda text: text == names.RENDEZVOUS)
        kind[meeting | flags(lambda text: names.RUNTIME.search(text) is not None)] = SliceKind.OTHER
        kind[flags(lambda text: text.startswith(names.PYTHON))] = SliceKind.PYTHON
        kind[flags(lambda text: names.NOISE.match(text) is not None)] = DROPPED
        return _Names(
            codes=np.array([self._pool.code(text) for text in texts], np.int32),
            kind=kind,
            jitted=flags(lambda text: text.startswith(names.JITTED)),
            end=flags(lambda text: text.startswith(names.END_MARK)),
            memory=flags(lambda text: text in (names.ALLOCATION, names.DEALLOCATION)),
            freed=flags(lambda text: text == names.DEALLOCATION),
            waits=flags(lambda text: text.endswith(names.AWAIT)),
            meeting=meeting,
        )

    @staticmethod
    def _append(table: ColumnBuffer, columns: Columns) -> None:
        if len(next(iter(columns.values()))):
            table.append(columns)

    @staticmethod
    def _join_waits(line: Line, waits: Array) -> Array:
        """Return second marks. Marks of one id are a wait: the first one then ends with the second."""
        second = _named(line, line.with_stat("_c"), waits)
        if not len(second):
            return second
        first = _named(line, line.with_stat("_p"), waits)
        partner = Lookup(line.number_of("_c", second), np.arange(len(second)))(line.number_of("_p", first))
        first, partner = first[partner != MISSING], second[partner[partner != MISSING]]
        later = line.start_ns[partner] >= line.start_ns[first]
        first, partner = first[later], partner[later]
        line.end_ns[first] = line.end_ns[partner]
        return np.unique(partner)

    def _add_work(self, line: Line, spans: Spans, meeting: Array) -> None:
        """Add instructions, steps and rendezvous."""
        ops = _shown(line.with_stat("hlo_op"), spans.kind)
        of = _of(spans, ops)
        self._append(
            self._ops,
            {
                "start_ns": of["start_ns"], "launch_end_ns": of["end_ns"],
                "name": line.number_of("hlo_op", ops).astype(np.int32),
                "module": line.number_of("hlo_module", ops).astype(np.int32),
                "program_id": line.number_of("program_id", ops), "run_id": line.number_of("run_id", ops),
                "ordinal": line.number_of("device_ordinal", ops), "mark": line.number_of("_p", ops),
                "event": ops + self._events,
            },
        )  # fmt: skip
        steps = _shown(line.with_stat("step_num"), spans.kind)
        of = _of(spans, steps)
        self._append(self._steps, {**{key: of[key] for key in ("start_ns", "end_ns", "name")},
                                   "number": line.number_of("step_num", steps)})  # fmt: skip
        met = _shown(_named(line, line.with_stat("num_threads"), meeting), spans.kind)
        of = _of(spans, met)
        self._append(
            self._meetings,
            {"start_ns": of["start_ns"], "end_ns": of["end_ns"], "key": line.number_of("name", met),
             "group_size": line.number_of("num_threads", met), "event": met + self._events},
        )  # fmt: skip

    def build(self) -> dict[str, Rows]:
        """Return the host's ``slices``, ``calls``, ``memory``, ``steps``, ``collectives`` and ``hlo_ops``."""
        columns, row, twice = nest(self._spans)
        self._spans.clear()
        self._pool.marks["calls of jitted functions written twice"] += twice
        rows = {"slices": Rows(TABLES["slices"], columns)}
        rows["calls"] = self._build_calls(rows["slices"])
        rows["memory"] = self._build_memory(rows["slices"])
        rows["steps"] = self._build_steps()
        rows["hlo_ops"] = self._build_ops(rows["slices"], row)
        rows["collectives"] = self._build_meetings(row)
        return rows

    def _build_calls(self, slices: Rows) -> Rows:
        if not len(self._calls):
            return Rows(TABLES["calls"], {})
        columns = self._calls.take()
        columns["parent"] = span_around(slices, columns["thread"], columns["start_ns"], columns["end_ns"])
        reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
        self.call_details = columns.pop("details")
        columns["kind"] = of_names(columns["name"], self._pool.strings, call_kind, np.uint8)
        return Rows(TABLES["calls"], columns)

    def _build_memory(self, slices: Rows) -> Rows:
        if not len(self._memory):
            return Rows(TABLES["memory"], {})
        columns = self._memory.take()
        columns["op"] = span_around(slices, columns["thread"], columns["time_ns"], columns["time_ns"])
        reorder(columns, np.argsort(columns["time_ns"], kind="stable"))
        columns, unknown = with_sizes(columns)
        if unknown:
            self._pool.unplaced["allocator events of unknown size"] += unknown
        return Rows(TABLES["memory"], columns)

    def _build_steps(self) -> Rows:
        if not len(self._steps):
            return Rows(TABLES["steps"], {})
        columns = self._steps.take()
        reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
        return Rows(TABLES["steps"], columns)

    def _build_ops(self, slices: Rows, row: Array) -> Rows:
        """Return instructions of the CPU backend: each ends where its end mark begins, on any thread."""
        if not len(self._ops):
            return Rows(TABLES["hlo_ops"], {})
        columns = self._ops.take()
        mark = columns.pop("mark")
        ends = self._ends.take() if len(self._ends) else {"id": np.empty(0, np.int64), "time_ns": np.empty(0, np.int64)}
        partner = (
            Lookup(ends["id"], np.arange(len(ends["id"])))(mark) if len(ends["id"]) else np.full_like(mark, MISSING)
        )
        columns["end_ns"] = columns["launch_end_ns"].copy()
        paired = np.flatnonzero(partner != MISSING)
        finished = ends["time_ns"][partner[paired]] if len(paired) else np.empty(0, np.int64)
        paired, finished = (
            paired[finished >= columns["start_ns"][paired]],
            finished[finished >= columns["start_ns"][paired]],
        )
        columns["end_ns"][paired] = finished
        self._pool.marks["instructions without an end mark"] += len(mark) - len(paired)
        columns["slice"] = row[columns.pop("event")]
        columns["encloses"] = _enclosing(slices, columns["slice"])
        reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
        return Rows(TABLES["hlo_ops"], columns)

    def _build_meetings(self, row: Array) -> Rows:
        """Return a row per thread in a rendezvous of the CPU backend's collectives."""
        if not len(self._meetings):
            return Rows(TABLES["collectives"], {})
        columns = self._meetings.take()
        result: dict[int, tuple[int, int]] = {}
        for code in np.unique(columns["key"]).tolist():
            match = _KEY.match(self._pool.strings[code]) if code != MISSING else None
            what = match["what"].replace(" ", "_") if match else "unknown"
            devices = f"[{match['devices']}]" if match and match["devices"] else ""
            result[code] = self._pool.code(what), self._pool.code(devices) if devices else MISSING
        keys = columns.pop("key").tolist()
        columns["name"] = np.array([result[code][0] for code in keys], np.int32)
        columns["ranks"] = np.array([result[code][1] for code in keys], np.int32)
        columns["group_size"] = columns["group_size"].astype(np.int32)
        columns["slice"] = row[columns.pop("event")]
        reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
        return Rows(TABLES["collectives"], columns)

    call_details: Any = None
    """``memcpy_details`` of each row of ``calls`` (codes), after ``build``."""


def _shown(events: Array, kind: Array) -> Array:
    """Return those of ``events`` that are rows of a table."""
    chosen: Array = events[kind[events] != DROPPED]
    return chosen


def _named(line: Line, events: Array, names: Array) -> Array:
    """Return those of ``events`` whose name has the flag in ``names``."""
    return events[names[line.place[events]]] if names.any() else events[:0]


def _either(line: Line, *stats: str) -> Array:
    """Return the events that have any of the stats."""
    has = np.zeros(len(line), bool)
    for name in stats:
        has[line.with_stat(name)] = True
    return np.flatnonzero(has)


def _of(spans: Spans, events: Array) -> Columns:
    """Return start, end, name and thread of ``events``."""
    return {
        "start_ns": spans.start_ns[events],
        "end_ns": spans.end_ns[events],
        "name": spans.names[spans.place[events]],
        "thread": np.full(len(events), spans.thread, np.int32),
    }


def _enclosing(slices: Rows, rows: Array) -> Array:
    """Flag ``rows`` in whose call another instruction's call ran, on the same thread."""
    is_op = slices["kind"] == SliceKind.OP
    above = slices["parent"].astype(np.int64)
    while True:  # Climb to the nearest instruction.
        climbing = (above != MISSING) & ~is_op[np.maximum(above, 0)]
        if not climbing.any():
            break
        above[climbing] = slices["parent"][above[climbing]]
    holds = np.zeros(len(slices), bool)
    holds[above[is_op & (above != MISSING)]] = True
    return holds[rows]
