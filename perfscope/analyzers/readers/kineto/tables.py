"""Declared tables from shards: one string pool, rows in order, and the links between host and device."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfscope.analyzers.readers import communication
from perfscope.analyzers.readers.columns import (
    Columns,
    Lookup,
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
from perfscope.analyzers.readers.kineto import categories
from perfscope.analyzers.readers.kineto.counter_ranges import joined_ranges
from perfscope.analyzers.readers.kineto.device_marks import marked_steps, with_marks
from perfscope.analyzers.readers.kineto.document import Calls, DeviceProperties, Head
from perfscope.analyzers.readers.kineto.process_groups import peers_of_spans
from perfscope.analyzers.readers.kineto.shard import Shard
from perfscope.model.intervals import numbered
from perfscope.model.trace import CallKind, CopyKind, MemoryAction, SliceKind, TraceBuilder
from perfscope.model.trace.columns import MISSING, Array

_TEXT = (
    "name", "category", "shapes", "dtypes", "strides", "values", "group", "description", "ranks", "dtype", "direction",
    "metric",
)  # fmt: skip


class Tables:
    """Builder of one file's tables from its shards, in a builder of a trace."""

    def __init__(self, builder: TraceBuilder, shards: list[Shard], head: Head) -> None:
        self._builder = builder
        self.code, self.strings, self.rows = builder.code, builder.strings, builder.rows
        self._base_ns = head.base_ns
        self._cells = {} if head.calls is None else head.calls.cells
        columns = [shard.columns() for shard in shards]
        self._known = [self._pool(shard) for shard in shards]
        self._known_threads = [
            np.array([self._thread(thread) for thread in shard.threads], np.int32) for shard in shards
        ]
        merged = {name: self._merge(name, columns) for name in ("slices", "calls", "kernel", "copy", "sync", "mtia")}
        merged |= {
            name: self._merge(name, columns)
            for name in ("memory", "counters", "described", "messages", "ranges", "marks")
        }
        self._split_mtia(merged)
        self._slices(merged["slices"], head)
        self._calls(merged["calls"])
        self._devices(merged, head)
        self._device_work(merged)
        self._collectives(merged["described"], merged["messages"])
        self._syncs(merged["sync"])
        self._memory(merged["memory"])
        builder.table("counters", merged["counters"])
        ranges, calls, slices = merged["ranges"], self.rows["calls"], self.rows["slices"]
        builder.table("kernel_counters", joined_ranges(ranges, calls, slices, self.code) if ranges else {})
        self._steps(merged["marks"])
        builder.threads_table()

    def _merge(self, table: str, shards: list[dict[str, Columns]]) -> Columns:
        parts = []
        for tables, known, threads in zip(shards, self._known, self._known_threads, strict=True):
            columns = tables.pop(table, {})
            if not columns:
                continue
            for name in _TEXT:
                if name in columns and known is not None:
                    columns[name] = known[columns[name]]
            if "thread" in columns:
                columns["thread"] = threads[columns["thread"]]
            if self._base_ns:
                for name in ("start_ns", "end_ns", "time_ns"):
                    if name in columns:
                        columns[name] += self._base_ns
            parts.append(columns)
        return join_columns(parts) if parts else {}

    def _pool(self, shard: Shard) -> Array | None:
        """Return the codes of the shard's strings in the trace's pool, then ``MISSING``; ``None`` if they agree."""
        strings = [self._named(text) for text in shard.strings] if self._cells else list(shard.strings)
        if not self.strings:
            self._builder.add_strings(strings)
            return None
        return np.array([*map(self.code, strings), MISSING], np.int32)

    def _named(self, text: str) -> str:
        """Return a Python span's name with the cell of the notebook in place of its file."""
        file, bracket, rest = text.partition("(")
        return f"{self._cells.get(file, file)}{bracket}{rest}"

    def _thread(self, thread: tuple[Any, Any]) -> int:
        threads = self._builder.threads
        return threads.setdefault((str(thread[0]), str(thread[1])), len(threads))

    def _by_name(self, names: Array, classify: Any, dtype: Any) -> Array:
        return of_names(names, self.strings, classify, dtype)

    def _split_mtia(self, merged: dict[str, Columns]) -> None:
        """Split MTIA's device events, which have one category: kernels, DMA requests and waits."""
        events = merged.pop("mtia")
        if not events:
            return
        groups = self._by_name(events["name"], categories.mtia_group, np.uint8)
        direction = self._by_name(events.pop("direction"), categories.mtia_direction, np.uint8)
        for table, group in (
            ("kernel", categories.Group.KERNEL),
            ("sync", categories.Group.SYNC),
            ("copy", categories.Group.COPY),
        ):
            chosen = groups == group
            if not chosen.any():
                continue
            part = {name: values[chosen] for name, values in events.items()}
            if table == "copy":
                part["kind"] = direction[chosen]
                part["host_memory"] = np.array(
                    [categories.default_host_memory(CopyKind(kind)) for kind in part["kind"].tolist()], np.uint8
                )
            else:
                part.pop("bytes")
            merged[table] = join_columns([merged[table], part]) if merged[table] else part

    def _slices(self, columns: Columns, head: Head) -> None:
        if not columns:
            self._builder.table("slices", {})
            return
        order = nesting_order(columns["thread"], columns["start_ns"], columns["end_ns"])
        reorder(columns, order)
        category = columns.pop("category")
        columns["kind"] = self._by_name(
            category, lambda name: categories.SLICE_KINDS.get(name, SliceKind.OTHER), np.uint8
        )
        # Until 2021 Kineto had one category for ops and annotations.
        mixed = self._by_name(category, lambda name: name == "operator", bool)
        if mixed.any():
            annotations = mixed & self._by_name(columns["name"], categories.is_annotation, bool)
            columns["kind"][annotations] = SliceKind.ANNOTATION
        columns["parent"] = parents(columns["thread"], columns["start_ns"], columns["end_ns"])
        if head.calls is not None:
            columns["call_line"] = _call_lines(columns, head.calls)
        self._builder.table("slices", columns)

    def _around(self, columns: Columns, start: Array, end: Array) -> Array:
        return span_around(self.rows["slices"], columns["thread"], start, end)

    def _calls(self, columns: Columns) -> None:
        if columns:
            order = np.argsort(columns["start_ns"], kind="stable")
            reorder(columns, order)
            columns["kind"] = self._by_name(columns["name"], categories.call_kind, np.uint8)
            columns["parent"] = self._around(columns, columns["start_ns"], columns["end_ns"])
        self._builder.table("calls", columns)

    def _devices(self, merged: dict[str, Columns], head: Head) -> None:
        seen = [merged[name]["device"] for name in ("kernel", "copy", "sync") if merged[name]]
        ordinals = numbered(np.concatenate(seen))[0] if seen else np.empty(0, np.int64)
        known = {device.id: device for device in head.devices}
        # ROCm numbers devices in the node, their properties in the process; equal devices represent each other.
        kinds = {(device.product, device.cores, device.memory) for device in head.devices}
        any_device = head.devices[0] if len(kinds) == 1 else None
        found = [known.get(int(ordinal), any_device) for ordinal in ordinals]
        self._ordinals = ordinals
        self._builder.table(
            "devices",
            {
                "ordinal": ordinals,
                "name": np.array([self._product(d) for d in found], np.int32),
                "cores": np.array([d.cores if d else MISSING for d in found], np.int64),
                "memory_bytes": np.array([d.memory if d else MISSING for d in found], np.int64),
            },
        )

    def _product(self, device: DeviceProperties | None) -> int:
        if device is not None and device.product:
            return self.code(device.product)
        return self.code("Ascend NPU") if any(map(categories.is_cann_call, self.strings)) else MISSING

    def _device_work(self, merged: dict[str, Columns]) -> None:
        calls, slices = self.rows["calls"], self.rows["slices"]
        # If calls share a correlation id, the one that launches wins.
        launches = calls["kind"] <= int(CallKind.MEMSET)
        by_correlation = Lookup(calls["correlation"], np.argsort(launches, kind="stable"))
        trusted = self._external_ids_are_ops(merged)
        labelled = np.flatnonzero((slices["external_id"] >= 0) & (slices["kind"] <= int(SliceKind.ANNOTATION)))
        by_external = Lookup(
            slices["external_id"], labelled[np.argsort(-slices["kind"][labelled].astype(int), kind="stable")]
        )
        for part, table in (("kernel", "kernels"), ("copy", "copies")):
            columns = merged[part]
            if not columns:
                self._builder.table(table, {})
                continue
            order = np.lexsort((columns["start_ns"], columns["stream"], columns["device"]))
            reorder(columns, order)
            columns["device"] = np.searchsorted(self._ordinals, columns["device"]).astype(np.int32)
            call = columns["call"] = by_correlation(columns["correlation"])
            op = by_external(columns["external_id"]) if trusted else np.full(len(call), MISSING, np.int32)
            above = op_above(slices, parent_of_call(calls, call))
            columns["op"] = np.where(op == MISSING, above, op).astype(np.int32)
            if table == "kernels":
                columns["communication"] = self._by_name(columns["name"], communication.is_communication, bool)
            elif "kind" not in columns:
                columns["kind"] = self._by_name(columns["name"], categories.copy_kind, np.uint8)
                columns["host_memory"] = self._by_name(columns["name"], categories.host_memory, np.uint8)
            self._builder.table(table, columns)

    def _external_ids_are_ops(self, merged: dict[str, Columns]) -> bool:
        """Return ``False`` if device rows repeat the correlation id as external id (old files), which names no op."""
        kernels = merged["kernel"]
        if not kernels:
            return True
        known = kernels["external_id"] >= 0
        return bool((kernels["external_id"] != kernels["correlation"])[known].any())

    def _collectives(self, described: Columns, messages: Columns) -> None:
        kernels, slices = self.rows["kernels"], self.rows["slices"]
        rows = np.flatnonzero(kernels["communication"])
        on_device: Columns = {
            "start_ns": kernels["start_ns"][rows],
            "end_ns": kernels["end_ns"][rows],
            "name": self._by_name(
                kernels["name"][rows], lambda name: self.code(communication.collective_name(name)), np.int32
            ),
            "kernel": rows.astype(np.int32),
        }
        if described:
            self._describe(on_device, described, {key: kernels[key][rows] for key in ("stream", "correlation")})
        spans = self._by_name(slices["name"], lambda name: categories.GLOO_NAME.match(name) is not None, bool)
        hosted = (
            np.flatnonzero(spans & (slices["kind"] == SliceKind.ANNOTATION)) if len(slices) else np.empty(0, np.int64)
        )
        on_host: Columns = {
            "start_ns": slices["start_ns"][hosted],
            "end_ns": slices["end_ns"][hosted],
            "name": self._by_name(slices["name"][hosted], lambda name: self.code(name.split(":", 1)[1]), np.int32),
            "slice": hosted.astype(np.int32),
        }
        if messages:
            named = [self.strings[code] for code in on_host["name"].tolist()]
            on_host["peer"] = peers_of_spans(
                {key: slices[key][hosted] for key in ("start_ns", "thread")}, named, messages
            )
        self._builder.table("collectives", join_columns([on_device, on_host]))

    def _describe(self, collectives: Columns, described: Columns, ids: Columns) -> None:
        """Join sizes and groups to their kernels by start time; equal times also by ``ids``: stream and correlation."""
        starts = Lookup(described["start_ns"], np.arange(len(described["start_ns"])))
        match = starts(collectives["start_ns"])
        times, counts = np.unique(described["start_ns"], return_counts=True)
        if (counts > 1).any():
            keys = ("stream", "correlation")
            known = {
                key: row
                for row, key in enumerate(zip(*(described[name].tolist() for name in ("start_ns", *keys)), strict=True))
            }
            for row in np.flatnonzero(np.isin(collectives["start_ns"], times[counts > 1])).tolist():
                key = (int(collectives["start_ns"][row]), *(int(ids[name][row]) for name in keys))
                match[row] = known.get(key, MISSING)
        result = match != MISSING
        numbers = ("group_size", "elements_in", "elements_out", "sequence", "peer")
        for name in ("group", "description", "ranks", "dtype", *numbers):
            values = np.full(len(match), MISSING, described[name].dtype)
            values[result] = described[name][match[result]]
            collectives[name] = values
        sizes = collectives["group_size"]
        collectives["group_size"] = np.where(sizes < 2**31, sizes, MISSING).astype(np.int32)
        named = self._by_name(
            described["name"],
            lambda name: self.code(
                name.strip("_").replace("allreduce", "all_reduce").replace("allgather", "all_gather")
            ),
            np.int32,
        )
        collectives["name"] = np.where(result, named[np.maximum(match, 0)], collectives["name"]).astype(np.int32)

    def _syncs(self, columns: Columns) -> None:
        if columns:
            columns["device"] = np.searchsorted(self._ordinals, columns["device"]).astype(np.int32)
            calls = self.rows["calls"]
            columns["call"] = Lookup(calls["correlation"], np.arange(len(calls)))(columns["correlation"])
        columns.pop("external_id", None)
        self._builder.table("sync_records", columns)

    def _memory(self, columns: Columns) -> None:
        if columns:
            order = np.argsort(columns["time_ns"], kind="stable")
            reorder(columns, order)
            columns["op"] = self._around(columns, columns["time_ns"], columns["time_ns"])
            columns["action"] = np.where(columns["bytes"] < 0, MemoryAction.FREE, MemoryAction.ALLOCATE)
        self._builder.table("memory", columns)

    def _steps(self, marks: Columns) -> None:
        slices = self.rows["slices"]
        annotations = np.flatnonzero(slices["kind"] == SliceKind.ANNOTATION)
        columns = named_steps(slices, annotations, self.strings, categories.STEP_NAMES)
        marks = marked_steps(marks, self.strings) if marks else {}
        self._builder.table("steps", with_marks(columns, marks) if columns and marks else columns or marks)


def _call_lines(columns: Columns, calls: Calls) -> Array:
    """Return, per span, the line that called it; ``MISSING`` if it is not a Python span, or not one call began then."""
    starts, counts = np.unique(np.array(calls.starts, np.int64), return_counts=True)
    lines = dict(zip(calls.starts, calls.lines, strict=True))
    once = {start: lines[start] for start in starts[counts == 1].tolist()}
    python = columns["kind"] == SliceKind.PYTHON
    found = np.full(len(python), MISSING, np.int32)
    found[python] = [once.get(start, MISSING) for start in columns["start_ns"][python].tolist()]
    return found
