"""Planes of the host: spans, runtime calls, allocator events, steps and instructions of the CPU backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from perfscope.analyzers.readers.columns import (
    ColumnBuffer,
    Columns,
    Lookup,
    distinct,
    nesting_order,
    of_names,
    parents,
    reorder,
    span_around,
)
from perfscope.analyzers.readers.kineto.categories import call_kind
from perfscope.analyzers.readers.xspace import names
from perfscope.analyzers.readers.xspace.planes import Line, Plane
from perfscope.model.trace import TABLES, MemoryAction, Rows, SliceKind, TraceBuilder
from perfscope.model.trace.columns import MISSING, Array

_ORDINAL = re.compile(r"(\d+)")

_PERHAPS = 255
"""Kind of a span that is an annotation unless a span of the runtime encloses it."""

_KEY = re.compile(r"(?P<what>.+?) RendezvousKey\{.*?global_devices=\[(?P<devices>[\d, ]*)\]")


# Events of XLA's allocators among the host's spans: GPUs have the allocator's name, TPUs the device.
#
# The totals in an event agree with xprof's memory profile: allocated bytes and those of the programs' stacks are in
# use, their largest sum is the peak of the recording, and the allocator has its own peak since its start.


def events(line: Line, thread: int, freed: Array, chosen: Array, strings: Sequence[str]) -> Columns:
    """Return the columns of table ``memory`` for the chosen events of a line, with positive sizes and ``freed``."""
    allocators = line.number("allocator_name")[chosen]
    known = {int(key): strings[int(key)] for key in np.unique(allocators) if key != MISSING}
    on_device = {key: not any(side in text.lower() for side in ("host", "cpu")) for key, text in known.items()}
    ordinals = {
        key: int(match[1]) if on_device[key] and (match := _ORDINAL.search(text)) else MISSING
        for key, text in known.items()
    }
    named = np.array([ordinals.get(key, MISSING) for key in allocators.tolist()], np.int64)
    index = line.number("index_on_host")[chosen]
    peak = line.number("peak_bytes_in_use")[chosen]
    fragmentation = line.values[chosen]
    allocated, stack, free = (
        line.number(name)[chosen] for name in ("bytes_allocated", "bytes_reserved", "bytes_available")
    )
    return {
        "time_ns": line.start_ns[chosen],
        "thread": np.full(len(index), thread, np.int32),
        "on_device": np.array([on_device.get(key, False) for key in allocators.tolist()], bool) | (index != MISSING),
        "ordinal": np.where(index != MISSING, index, named),
        "address": np.where(line.number("addr") == MISSING, 0, line.number("addr"))[chosen].astype(np.uint64),
        "bytes": line.number("allocation_bytes")[chosen],
        "freed": freed[chosen],
        "requested_bytes": line.number("requested_bytes")[chosen],
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
    return {name: values[~unknown] for name, values in columns.items()}, int(unknown.sum())


class Host:
    """Collector of the lines of all host planes; ``build`` makes the tables."""

    def __init__(self, pool: TraceBuilder) -> None:
        self._pool = pool
        self._slices, self._calls, self._memory = ColumnBuffer(), ColumnBuffer(), ColumnBuffer()
        self._ops, self._ends, self._steps, self._meetings = (
            ColumnBuffer(),
            ColumnBuffer(),
            ColumnBuffer(),
            ColumnBuffer(),
        )

    def add(self, plane: Plane, line: Line) -> None:
        """Add one line of a host plane, which is one thread."""
        if not len(line):
            return
        process = str(plane.stats.get("process_id", "")) or "host"
        thread = self._pool.thread(process, line.name or str(line.id), line.id)
        name, flags = self._names(plane, line)
        noise, ends = flags["noise"] | line.aggregated, flags["end"] & (line.number("_c") != MISSING)
        calls = (line.number("correlation_id") != MISSING) & ~noise
        # On TPUs a deallocation has the block but not its size.
        memory = flags["memory"] & ((line.number("allocation_bytes") != MISSING) | (line.number("addr") != MISSING))
        awaits, start, end = self._await_spans(line, flags["await"])
        dropped = noise | ends | calls | memory | awaits
        self._pool.marks["thread pool marks"] += int(noise.sum())
        self._pool.marks["end marks of instructions"] += int(ends.sum())
        self._pool.marks["second marks of waits"] += int(awaits.sum())
        base = {"start_ns": start, "end_ns": end, "name": name, "thread": np.full(len(line), thread, np.int32)}
        self._append(self._ends, {"id": line.number("_c"), "time_ns": line.start_ns}, ends)
        self._append(self._calls, {**base, "correlation": line.number("correlation_id"),
                                   "details": line.number("memcpy_details")}, calls)  # fmt: skip
        if memory.any():
            self._memory.append(events(line, thread, flags["freed"], memory, self._pool.strings))
        self._add_slices(line, base, flags, ~dropped)

    def _names(self, plane: Plane, line: Line) -> tuple[Array, dict[str, Array]]:
        """Return the code of each event's name, and facts from the name, once per distinct name."""
        ids, index = distinct(line.metadata)
        texts = [plane.names.get(int(key), "") for key in ids]
        tests: dict[str, Callable[[str], bool]] = {
            "noise": lambda text: names.NOISE.match(text) is not None,
            "end": lambda text: text.startswith(names.END_MARK),
            "memory": lambda text: text in (names.ALLOCATION, names.DEALLOCATION),
            "freed": lambda text: text == names.DEALLOCATION,
            "await": lambda text: text.endswith(names.AWAIT),
            "python": lambda text: text.startswith(names.PYTHON),
            "runtime": lambda text: names.RUNTIME.search(text) is not None,
            "meeting": lambda text: text == names.RENDEZVOUS,
        }
        flags = {key: np.array([test(text) for text in texts], bool)[index] for key, test in tests.items()}
        codes = np.array([self._pool.code(text) for text in texts], np.int32)
        return codes[index], flags

    @staticmethod
    def _append(table: ColumnBuffer, columns: Columns, chosen: Array) -> None:
        if chosen.any():
            table.append({key: values[chosen] for key, values in columns.items()})

    @staticmethod
    def _await_spans(line: Line, waits: Array) -> tuple[Array, Array, Array]:
        """Return waits. Two short marks of one id are a wait, from the first's start to the second's end."""
        second = waits & (line.number("_c") != MISSING)
        end = line.end_ns.copy()
        if not second.any():
            return second, line.start_ns, end
        first = np.flatnonzero(waits & (line.number("_p") != MISSING))
        partner = Lookup(line.number("_c"), np.flatnonzero(second))(line.number("_p")[first])
        later = (partner != MISSING) & (line.start_ns[partner] >= line.start_ns[first])
        end[first[later]] = line.end_ns[partner[later]]
        gone = np.zeros(len(line), bool)
        gone[partner[later]] = True
        return gone, line.start_ns, end

    def _add_slices(self, line: Line, base: Columns, flags: dict[str, Array], chosen: Array) -> None:
        if not chosen.any():
            return
        instruction = line.number("hlo_op")
        number = line.number("step_num")
        kind = np.full(len(line), _PERHAPS, np.uint8)
        kind[flags["runtime"] | flags["meeting"]] = SliceKind.OTHER
        kind[flags["python"]] = SliceKind.PYTHON
        kind[number != MISSING] = SliceKind.ANNOTATION
        kind[instruction != MISSING] = SliceKind.OP
        ident = np.full(len(line), MISSING, np.int64)
        ident[chosen] = np.arange(int(chosen.sum())) + len(self._slices)
        self._slices.append({**{key: values[chosen] for key, values in base.items()},
                             "kind": kind[chosen], "ident": ident[chosen]})  # fmt: skip
        self._append(
            self._ops,
            {
                "start_ns": base["start_ns"], "launch_end_ns": base["end_ns"],
                "name": instruction.astype(np.int32), "module": line.number("hlo_module").astype(np.int32),
                "program_id": line.number("program_id"), "run_id": line.number("run_id"),
                "ordinal": line.number("device_ordinal"), "mark": line.number("_p"), "ident": ident,
            },
            chosen & (instruction != MISSING),
        )  # fmt: skip
        self._append(self._steps, {**{key: base[key] for key in ("start_ns", "end_ns", "name")}, "number": number},
                     chosen & (number != MISSING))  # fmt: skip
        self._append(
            self._meetings,
            {"start_ns": base["start_ns"], "end_ns": base["end_ns"], "key": line.number("name"),
             "group_size": line.number("num_threads"), "ident": ident},
            chosen & flags["meeting"] & (line.number("num_threads") != MISSING),
        )  # fmt: skip

    def build(self) -> dict[str, Rows]:
        """Return the host's ``slices``, ``calls``, ``memory``, ``steps``, ``collectives`` and ``hlo_ops``."""
        rows = {"slices": Rows(TABLES["slices"], {})}
        ident = np.empty(0, np.int32)
        if len(self._slices):
            rows["slices"], ident = self._build_slices(self._slices.take())
        rows["calls"] = self._build_calls(rows["slices"])
        rows["memory"] = self._build_memory(rows["slices"])
        rows["steps"] = self._build_steps()
        rows["hlo_ops"] = self._build_ops(rows["slices"], ident)
        rows["collectives"] = self._build_meetings(ident)
        return rows

    def _build_slices(self, columns: Columns) -> tuple[Rows, Array]:
        """Return the table, and its row for each added slice (``MISSING``: written twice, left out)."""
        reorder(columns, nesting_order(columns["thread"], columns["start_ns"], columns["end_ns"]))
        parent = parents(columns["thread"], columns["start_ns"], columns["end_ns"])
        jitted = [code for code, text in enumerate(self._pool.strings) if text.startswith(names.JITTED)]
        twice = np.isin(columns["name"], jitted) & (parent != MISSING)
        twice &= columns["name"][np.maximum(parent, 0)] == columns["name"]
        self._pool.marks["calls of jitted functions written twice"] += int(twice.sum())
        for key in columns:
            columns[key] = columns[key][~twice]
        added = columns.pop("ident")
        columns["parent"] = parents(columns["thread"], columns["start_ns"], columns["end_ns"])
        columns["kind"] = self._annotations(columns, jitted)
        row = np.full(len(twice), MISSING, np.int32)
        row[added] = np.arange(len(added))
        return Rows(TABLES["slices"], columns), row

    @staticmethod
    def _annotations(columns: Columns, jitted: list[int]) -> Array:
        """Return spans of unknown name that are the user's: on a Python thread, outside all spans of the runtime."""
        kind, parent, thread = columns["kind"], columns["parent"], columns["thread"]
        programs = np.unique(thread[(kind == SliceKind.PYTHON) | (kind == SliceKind.ANNOTATION)
                                    | np.isin(columns["name"], jitted)])  # fmt: skip
        inside = np.isin(kind, (SliceKind.OTHER, SliceKind.OP)) | ~np.isin(thread, programs)
        while True:  # One level of nesting per round.
            deeper = inside | np.where(parent == MISSING, False, inside[np.maximum(parent, 0)])
            if (deeper == inside).all():
                break
            inside = deeper
        return np.where(kind == _PERHAPS, np.where(inside, SliceKind.OTHER, SliceKind.ANNOTATION), kind).astype(
            np.uint8
        )

    def _build_calls(self, slices: Rows) -> Rows:
        if not len(self._calls):
            return Rows(TABLES["calls"], {})
        columns = self._calls.take()
        reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
        self.call_details = columns.pop("details")
        columns["kind"] = of_names(columns["name"], self._pool.strings, call_kind, np.uint8)
        columns["parent"] = span_around(slices, columns["thread"], columns["start_ns"], columns["end_ns"])
        return Rows(TABLES["calls"], columns)

    def _build_memory(self, slices: Rows) -> Rows:
        if not len(self._memory):
            return Rows(TABLES["memory"], {})
        columns = self._memory.take()
        reorder(columns, np.argsort(columns["time_ns"], kind="stable"))
        columns, unknown = with_sizes(columns)
        if unknown:
            self._pool.unplaced["allocator events of unknown size"] += unknown
        columns["op"] = span_around(slices, columns["thread"], columns["time_ns"], columns["time_ns"])
        return Rows(TABLES["memory"], columns)

    def _build_steps(self) -> Rows:
        if not len(self._steps):
            return Rows(TABLES["steps"], {})
        columns = self._steps.take()
        reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
        return Rows(TABLES["steps"], columns)

    def _build_ops(self, slices: Rows, ident: Array) -> Rows:
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
        columns["slice"] = ident[columns.pop("ident")]
        columns["encloses"] = _enclosing(slices, columns["slice"])
        reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
        return Rows(TABLES["hlo_ops"], columns)

    def _build_meetings(self, ident: Array) -> Rows:
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
        columns["slice"] = ident[columns.pop("ident")]
        reorder(columns, np.argsort(columns["start_ns"], kind="stable"))
        return Rows(TABLES["collectives"], columns)

    call_details: Any = None
    """``memcpy_details`` of each row of ``calls`` (codes), after ``build``."""


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
