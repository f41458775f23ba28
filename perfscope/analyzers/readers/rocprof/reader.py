"""rocprofv3: kernels, copies, HIP calls and roctx ranges of a process, joined to a trace.

A kernel belongs to the HIP call with its correlation id, and to the innermost roctx range around that call. Ranges that
are named like steps are the steps.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from perfscope.analyzers.readers.columns import (
    Columns,
    Lookup,
    nesting_order,
    of_names,
    op_above,
    parent_of_call,
    parents,
    reorder,
    span_around,
)
from perfscope.analyzers.readers.communication import collective_name, is_communication
from perfscope.analyzers.readers.file_bytes import read_head
from perfscope.analyzers.readers.kineto.categories import call_kind, default_host_memory
from perfscope.analyzers.readers.nsys.host import find_steps
from perfscope.analyzers.readers.rocprof.document import read_document
from perfscope.analyzers.readers.rocprof.events import Agent, Events
from perfscope.analyzers.readers.rocprof.tables import (
    AGENTS,
    KERNELS,
    belongs_to_other,
    is_table,
    read_tables,
    split_name,
)
from perfscope.model.errors import DataError
from perfscope.model.trace import MISSING, CopyKind, SliceKind, Trace, TraceBuilder
from perfscope.model.trace.columns import Array

FORMAT = "rocprofv3"

_DOCUMENT = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"')
_DIRECTIONS = {
    "HOST_TO_DEVICE": CopyKind.HOST_TO_DEVICE,
    "DEVICE_TO_HOST": CopyKind.DEVICE_TO_HOST,
    "DEVICE_TO_DEVICE": CopyKind.DEVICE_TO_DEVICE,
    "HOST_TO_HOST": CopyKind.HOST_TO_HOST,
}

_NO_CALLS = "no HIP calls were recorded, so launches and waits of the host are unknown: add --hip-trace"
_NO_MARKS = "no roctx range is named like a step: add --marker-trace, and ranges `step 0`, `step 1`, ..."


def sniff(path: Path, head: bytes) -> bool:
    """Return whether the file is JSON of rocprofv3, or a table; of a process, the table of kernels, else any."""
    if _DOCUMENT.match(head):
        return True
    named = split_name(path)
    if named is None:
        return is_table(head, KERNELS)
    if named[1] == AGENTS or not is_table(head, named[1]):
        return False
    return not belongs_to_other(path)


def read(path: Path) -> list[Trace]:
    """Return a trace per process. ``DataError``, one line, for a file that is corrupt or has no events."""
    processes = read_document(path) if _DOCUMENT.match(read_head(path)) else [read_tables(path)]
    traces = [_trace(str(path), events) for events in processes if events.total]
    if not traces:
        raise DataError(f"{path}: no kernel, copy, call or range in it")
    return traces


def _trace(shown: str, events: Events) -> Trace:
    builder = TraceBuilder(shown, FORMAT)
    builder.events = events.total
    builder.unplaced.update(events.unplaced)
    process = str(events.process) if events.process is not None else "program"
    calls, marks = events.calls.columns(builder), events.marks.columns(builder)
    instants = marks["start"] == marks["end"]
    builder.marks.update(builder.strings[code] for code in marks["name"][instants].tolist())
    marks = {name: values[~instants] for name, values in marks.items()}
    threads = np.unique(np.concatenate([calls["thread"], marks["thread"]]))
    builder.table("threads", {
        "process": np.full(len(threads), builder.code(process), np.int64),
        "thread": builder.codes(["ranges" if one <= 0 else str(one) for one in threads.tolist()]),
    })  # fmt: skip
    _slices(builder, marks, threads)
    _calls(builder, calls, threads)
    devices = _Devices(builder, events)
    devices.kernels()
    devices.copies()
    slices = builder.rows["slices"]
    named = {name: slices[name] for name in ("start_ns", "end_ns", "name", "kind", "thread")} if len(slices) else {}
    steps = find_steps(named, np.full(len(slices), MISSING), builder.strings, None)
    builder.table("steps", steps.columns)
    if steps.guessed is not None:
        builder.note(f"steps are taken from roctx ranges by their name, such as `{steps.guessed}`")
    builder.record_tables()
    builder.note(*builder.orphans(": their calls were not recorded"))
    if not len(events.calls):
        builder.note(_NO_CALLS)
    if not len(steps.columns.get("name", ())):
        builder.note(_NO_MARKS)
    return builder.build()


def _slices(builder: TraceBuilder, marks: Columns, threads: Array) -> None:
    columns: Columns = {
        "start_ns": marks["start"],
        "end_ns": marks["end"],
        "name": marks["name"],
        "thread": np.searchsorted(threads, marks["thread"]),
        "kind": np.full(len(marks["start"]), int(SliceKind.ANNOTATION), np.uint8),
    }
    reorder(columns, nesting_order(columns["thread"], columns["start_ns"], columns["end_ns"]))
    columns["parent"] = parents(columns["thread"], columns["start_ns"], columns["end_ns"])
    builder.table("slices", columns)


def _calls(builder: TraceBuilder, calls: Columns, threads: Array) -> None:
    thread = np.searchsorted(threads, calls["thread"])
    columns: Columns = {
        "start_ns": calls["start"],
        "end_ns": calls["end"],
        "name": calls["name"],
        "kind": of_names(calls["name"], builder.strings, call_kind, np.uint8),
        "thread": thread,
        "correlation": calls["correlation"],
        "parent": span_around(builder.rows["slices"], thread, calls["start"], calls["end"]),
    }
    builder.table("calls", columns)


class _Devices:
    """Devices and their work."""

    def __init__(self, builder: TraceBuilder, events: Events) -> None:
        self._builder = builder
        self._kernels, self._copies = events.kernels.columns(builder), events.copies.columns(builder)
        known: dict[int, Agent] = {agent.key: agent for agent in events.agents}
        target, source = self._copies["target"], self._copies["source"]
        on_device = np.isin(target, list(known)) if known else target != MISSING
        toward = np.array([self._direction(code) for code in self._copies["name"].tolist()], np.int64)
        away = (toward == CopyKind.DEVICE_TO_HOST) | (~on_device & (toward != CopyKind.HOST_TO_DEVICE))
        self._directions, self._copy_agents = toward, np.where(away, source, target)
        used = np.unique(np.concatenate([self._kernels["agent"], self._copy_agents])).tolist()
        orders = {key: known[key].order if key in known else index for index, key in enumerate(used)}
        self._order_of = np.array([orders[key] for key in used], np.int64)
        self._used = np.array(used, np.int64)
        ordinals = sorted(set(orders.values()))
        of_order = {known[key].order: known[key] for key in used if key in known}
        agents = [of_order.get(order) for order in ordinals]
        builder.table("devices", {
            "ordinal": np.array(ordinals, np.int64),
            "name": builder.codes([None if agent is None else agent.name for agent in agents]),
            "cores": np.array([MISSING if agent is None or agent.cores is None else agent.cores for agent in agents]),
        })  # fmt: skip
        self._ordinals = np.array(ordinals, np.int64)
        calls = builder.rows["calls"]
        self._by_correlation = Lookup(calls["correlation"], np.arange(len(calls)))

    def _direction(self, code: int) -> int:
        text = self._builder.strings[code].upper().removeprefix("MEMORY_COPY_")
        return int(_DIRECTIONS.get(text, CopyKind.UNKNOWN))

    def _rows(self, agents: Array) -> Array:
        """Row of each agent in the table of devices."""
        if not len(agents):
            return np.empty(0, np.int64)
        return np.searchsorted(self._ordinals, self._order_of[np.searchsorted(self._used, agents)])

    def _linked(self, columns: Columns) -> Columns:
        """Add the call with the same correlation id, and the range around it."""
        call = self._by_correlation(columns["correlation"])
        op = op_above(self._builder.rows["slices"], parent_of_call(self._builder.rows["calls"], call))
        return {**columns, "call": call, "op": op}

    def kernels(self) -> None:
        """Make ``kernels``, and ``collectives`` of those that communicate."""
        builder, found = self._builder, self._kernels
        streams = found["stream"]
        if not len(streams) or (streams == streams[0]).all():  # Not recorded, or one stream of several queues.
            streams = found["queue"]
        columns = self._linked({
            "start_ns": found["start"], "end_ns": found["end"], "name": found["name"],
            "device": self._rows(found["agent"]), "stream": streams, "correlation": found["correlation"],
            "communication": of_names(found["name"], builder.strings, is_communication, np.bool_),
            "blocks": found["blocks"], "threads_per_block": np.where(found["threads"] < 1 << 31, found["threads"], -1),
        })  # fmt: skip
        reorder(columns, np.lexsort((columns["start_ns"], columns["stream"], columns["device"])))
        kernels = builder.table("kernels", columns)
        rows = np.flatnonzero(kernels["communication"])
        names = [collective_name(builder.strings[code]) for code in kernels["name"][rows].tolist()]
        builder.table("collectives", {
            "start_ns": kernels["start_ns"][rows], "end_ns": kernels["end_ns"][rows], "kernel": rows,
            "name": np.array([builder.code(name) for name in names], np.int64),
        })  # fmt: skip

    def copies(self) -> None:
        """Make ``copies``."""
        found = self._copies
        columns = self._linked({
            "start_ns": found["start"], "end_ns": found["end"], "name": found["name"],
            "device": self._rows(self._copy_agents), "stream": found["stream"], "correlation": found["correlation"],
            "kind": self._directions, "bytes": found["bytes"],
            "host_memory": np.array([int(default_host_memory(CopyKind(kind))) for kind in self._directions.tolist()]),
        })  # fmt: skip
        reorder(columns, np.lexsort((columns["start_ns"], columns["stream"], columns["device"])))
        self._builder.table("copies", columns)
