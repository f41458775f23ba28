"""A trace as lanes: one row per stream, thread and depth, in which events do not overlap. Nothing is dropped."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.compare import work_class
from perfscope.analyzers.hlo import program_platform
from perfscope.analyzers.memory import memory_timelines
from perfscope.analyzers.ops import op_class
from perfscope.analyzers.sections import SampledCalls, sampled_calls
from perfscope.analyzers.time import loads_code
from perfscope.model.frames import parse_module
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, CallKind, SliceKind, Trace

# Category of an event, with name and colour: similar work has the same colour on devices and on the host.
#
# The first categories take most of a device's time; their colours are distinct for readers who cannot see red, green or
# blue, on light and dark backgrounds (a test computes that). Others are less vivid. Within a category the hash of an
# event's name selects one of three shades, the same in every run.

CATEGORY_WORDS = (
    "matrix product", "attention", "elementwise", "reduction", "collective", "copy, layout", "other kernel", "other op",
    "Python", "annotation", "launch", "wait of the host", "other call", "other instruction", "profiler", "step",
    "norm, softmax", "optimizer", "input", "module", "compilation",
)  # fmt: skip

_NAMED = (SliceKind.OP, SliceKind.ANNOTATION, SliceKind.OTHER)
"""Kinds of host spans whose category follows from their names; for others the kind decides."""

TABLES = ("steps", "kernels", "copies", "hlo_ops", "slices", "calls", "collectives", "frames")
"""Tables whose rows are events; an event's ``table`` is an index into this list. Events of ``frames`` are calls that
sampled stacks show; a frame has as many as it was seen in.
"""

MOST_SERIES = 64


class Category(IntEnum):
    """Category of an event, which gives its colour. Numbers are stored in indexes: new ones are appended."""

    MATRIX = 0
    ATTENTION = 1
    ELEMENTWISE = 2
    REDUCTION = 3
    COLLECTIVE = 4
    COPY = 5
    KERNEL = 6
    """Any other kernel."""
    OP = 7
    """Any other op of the host."""
    PYTHON = 8
    ANNOTATION = 9
    LAUNCH = 10
    SYNC = 11
    CALL = 12
    """Any other call of the runtime."""
    INSTRUCTION = 13
    """Any other instruction of a compiled program."""
    OVERHEAD = 14
    STEP = 15
    NORM = 16
    OPTIMIZER = 17
    INPUT = 18
    MODULE = 19
    COMPILE = 20


MAIN = (
    Category.MATRIX, Category.ATTENTION, Category.NORM, Category.ELEMENTWISE, Category.REDUCTION, Category.COLLECTIVE,
    Category.COPY, Category.OPTIMIZER,
)  # fmt: skip
"""Categories that must be distinguishable by colour alone."""

COLORS = {
    "light": (
        "#364fbc", "#5e2971", "#0099ff", "#a6ac04", "#c26010", "#812800", "#7f8fa8", "#9aa8b8", "#c9b8a0", "#b4bcc8",
        "#6f9fb5", "#b8324a", "#a3adba", "#8d9dbb", "#d0d4da", "#8899aa", "#298e74", "#eb8eb9", "#d9b310", "#b9c3cf",
        "#4f6b2f",
    ),
    "dark": (
        "#8098ff", "#9c31f2", "#86e5ff", "#dcea57", "#db7e20", "#a44a20", "#7f90ab", "#75869a", "#8f7f68", "#66707f",
        "#4f88a3", "#e0607a", "#6d7886", "#7488b0", "#454d58", "#5f6d7c", "#398390", "#d9a4a0", "#d9b84a", "#59657a",
        "#9bbf62",
    ),
}  # fmt: skip
"""Colours by category, for light and dark backgrounds."""

OF_CLASS = {
    "collective": Category.COLLECTIVE,
    "attention": Category.ATTENTION,
    "convolution": Category.MATRIX,
    "matrix product": Category.MATRIX,
    "normalisation": Category.NORM,
    "softmax": Category.NORM,
    "optimizer": Category.OPTIMIZER,
    "reduction": Category.REDUCTION,
    "elementwise": Category.ELEMENTWISE,
    "fused": Category.ELEMENTWISE,
    "copy": Category.COPY,
    "indexing": Category.COPY,
    "input": Category.INPUT,
    "module": Category.MODULE,
    "compilation": Category.COMPILE,
}
"""By class of the name of a kernel (`work_class`) or op (`op_class`)."""


def op_category(name: str, other: Category) -> Category:
    """Category of a host op or an instruction of a compiled program, by its name; else ``other``."""
    return OF_CLASS.get(op_class(name) or "", other)


def span_category(kind: SliceKind, name: str) -> Category:
    """Category of a host span: by its kind; for ops and annotations by name."""
    other = _OF_SLICE[kind]
    if kind == SliceKind.PYTHON:
        return other if parse_module(name) is None else Category.MODULE
    return op_category(name, other) if kind in _NAMED else other


def kernel_category(name: str) -> Category:
    """Category of a kernel by its name; else ``KERNEL``."""
    return OF_CLASS.get(work_class(name), Category.KERNEL)


Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]


_OF_SLICE = {
    SliceKind.OP: Category.OP,
    SliceKind.ANNOTATION: Category.ANNOTATION,
    SliceKind.PYTHON: Category.PYTHON,
    SliceKind.OVERHEAD: Category.OVERHEAD,
    SliceKind.OTHER: Category.OP,
}

_OF_CALL = {
    CallKind.KERNEL: Category.LAUNCH,
    CallKind.GRAPH: Category.LAUNCH,
    CallKind.COPY: Category.LAUNCH,
    CallKind.MEMSET: Category.LAUNCH,
    CallKind.SYNC: Category.SYNC,
    CallKind.MEMORY: Category.CALL,
    CallKind.OTHER: Category.CALL,
}


class Lane(Struct, frozen=True, kw_only=True):
    """One row of the picture."""

    group: str
    """The group it belongs to: a device, or the host's processes."""
    label: str
    depth: int


class Events(Struct, frozen=True, kw_only=True):
    """Events of all lanes, sorted by lane and start; arrays of one length. Times in ns on the trace's clock."""

    lanes: tuple[Lane, ...]
    lane: Int32
    start: Int64
    end: Int64
    name: Int32
    """Code of the trace's strings."""
    category: UInt8
    table: UInt8
    row: Int32
    """Row of its table."""

    def __len__(self) -> int:
        return len(self.start)


class _Part(Struct):
    """Events that share a line of the picture before they are divided into lanes by depth."""

    group: str
    label: str
    start: Int64
    end: Int64
    name: Int32
    category: UInt8
    table: int
    row: Int64
    depth: Int64


def events_of(trace: Trace) -> Events:
    """All events of a trace in lanes: steps, device streams, host threads and collectives."""
    lanes: list[Lane] = []
    held: dict[str, list[npt.NDArray[np.generic]]] = {
        key: [] for key in ("lane", "start", "end", "name", "category", "table", "row")
    }
    for group, label, parts in _lines(trace):
        start, end = (np.concatenate([getattr(part, key) for part in parts]) for key in ("start", "end"))
        depth = _apart(start, end, np.concatenate([part.depth for part in parts]))
        order = np.lexsort((end, start, depth))
        first = len(lanes)
        lanes += [Lane(group=group, label=label, depth=index) for index in range(int(depth.max()) + 1)]
        held["lane"].append((first + depth[order]).astype(np.int32))
        held["start"].append(start[order])
        held["end"].append(end[order])
        for key in ("name", "category", "row"):
            held[key].append(np.concatenate([getattr(part, key) for part in parts])[order])
        held["table"].append(np.concatenate([np.full(len(part.row), part.table, np.uint8) for part in parts])[order])
    types = {
        "lane": np.int32,
        "start": np.int64,
        "end": np.int64,
        "name": np.int32,
        "category": np.uint8,
        "table": np.uint8,
        "row": np.int32,
    }
    joined = {
        key: (np.concatenate(arrays) if arrays else np.empty(0)).astype(types[key]) for key, arrays in held.items()
    }
    return Events(lanes=tuple(lanes), **joined)


def _lines(trace: Trace) -> Iterator[tuple[str, str, list[_Part]]]:
    """Lines of the picture from top to bottom."""
    steps = trace.rows["steps"]
    if len(steps):
        part = _part(trace, "steps", np.arange(len(steps)), np.full(len(steps), Category.STEP), label="steps")
        yield "", "steps", [part]
    yield from _devices(trace)
    yield from _instructions(trace)
    yield from _threads(trace)
    yield from _host_collectives(trace)


def _devices(trace: Trace) -> Iterator[tuple[str, str, list[_Part]]]:
    devices, kernels, copies = trace.rows["devices"], trace.rows["kernels"], trace.rows["copies"]
    of_kernel = _kernel_categories(trace)
    named = stream_names(trace)
    for device in range(len(devices)):
        name = trace.text(int(devices["name"][device])) or "device"
        group = f"{name} ({int(devices['ordinal'][device])})"
        mine = np.flatnonzero(kernels["device"] == device), np.flatnonzero(copies["device"] == device)
        streams = np.union1d(kernels["stream"][mine[0]], copies["stream"][mine[1]])
        for stream in streams.tolist():
            label = named[device, stream].partition(", ")[2]
            rows = [
                positions[table["stream"][positions] == stream]
                for positions, table in zip(mine, (kernels, copies), strict=True)
            ]
            parts = [
                _part(trace, "kernels", rows[0], of_kernel[rows[0]], label=label, group=group),
                _part(trace, "copies", rows[1], np.full(len(rows[1]), Category.COPY), label=label, group=group),
            ]
            yield group, label, [part for part in parts if len(part.row)]


def stream_names(trace: Trace) -> dict[tuple[int, int], str]:
    """(row of ``devices``, stream) -> ``device 0, stream 7``, or the name of a line of a TPU."""
    ops, devices = trace.rows["hlo_ops"], trace.rows["devices"]
    tpu = bool(ops["asynchronous"].any()) or program_platform(trace) == "tpu"
    result: dict[tuple[int, int], str] = {}
    for table, key in (("kernels", "kernel"), ("copies", "copy")):
        work = trace.rows[table]
        aside = np.full(len(work), -1)
        mine = np.flatnonzero(ops[key] != MISSING) if tpu else np.empty(0, np.int64)
        aside[ops[key][mine]] = ops["asynchronous"][mine]
        for device, stream, kind in np.unique(
            np.stack((work["device"], work["stream"], aside), axis=1), axis=0
        ).tolist():
            word = f"stream {stream}" if kind < 0 else "Async XLA Ops" if kind else "XLA Ops"
            result[device, stream] = f"device {int(devices['ordinal'][device])}, {word}"
    return result


def _instructions(trace: Trace) -> Iterator[tuple[str, str, list[_Part]]]:
    """XLA instructions without a row in the tables above: enclosing instructions, and XLA's own devices."""
    ops = trace.rows["hlo_ops"]
    if not len(ops):
        return
    alone = (ops["kernel"] == MISSING) & (ops["copy"] == MISSING) & (ops["slice"] == MISSING)
    for ordinal in np.unique(ops["ordinal"][alone]).tolist():
        rows = np.flatnonzero(alone & (ops["ordinal"] == ordinal))
        group = "XLA" if ordinal == MISSING else f"XLA device {ordinal}"
        categories = _named(trace, ops["name"][rows], np.full(len(rows), Category.INSTRUCTION, np.uint8))
        yield group, "instructions", [_part(trace, "hlo_ops", rows, categories, label="instructions", group=group)]


def _threads(trace: Trace) -> Iterator[tuple[str, str, list[_Part]]]:
    """For each thread its activity (ops, calls), and separately its recorded or sampled stack, which is deep."""
    slices, calls, threads = trace.rows["slices"], trace.rows["calls"], trace.rows["threads"]
    python = slices["kind"] == SliceKind.PYTHON
    of_slice = _mapped(slices["kind"], _OF_SLICE)
    named = np.flatnonzero(np.isin(slices["kind"], _NAMED))
    of_slice[named] = _named(trace, slices["name"][named], of_slice[named])
    modules = [code for code in np.unique(slices["name"][python]).tolist() if parse_module(trace.text(code))]
    of_slice[python & np.isin(slices["name"], modules)] = Category.MODULE
    of_call = _mapped(calls["kind"], _OF_CALL)
    of_call[np.isin(calls["name"], _loading(trace))] = Category.COMPILE
    depth = np.where(python, _depths(slices["parent"], python), _depths(slices["parent"], ~python))
    below = np.zeros(len(calls), np.int64)
    if len(slices):
        work = _depths(slices["parent"], ~python)
        inside = calls["parent"] != MISSING
        above = calls["parent"][inside]
        below[inside] = work[above] + ~python[above]
    sampled = sampled_calls(trace)
    for thread in range(len(threads)):
        spans, mine = np.flatnonzero(slices["thread"] == thread), np.flatnonzero(calls["thread"] == thread)
        process = trace.text(int(threads["process"][thread]))
        name = trace.text(int(threads["thread"][thread]))
        label = f"thread {name}"
        group = f"host, process {process}" if process[:1].isdigit() else f"host, {process}" if process else "host"
        ran, stack = spans[~python[spans]], spans[python[spans]]
        parts = [
            _part(trace, "slices", ran, of_slice[ran], label=label, group=group, depth=depth[ran]),
            _part(trace, "calls", mine, of_call[mine], label=label, group=group, depth=below[mine]),
        ]
        if len(ran) or len(mine):
            yield group, label, [part for part in parts if len(part.row)]
        if len(stack):
            under = f"{label}, Python"
            yield (
                group,
                under,
                [_part(trace, "slices", stack, of_slice[stack], label=under, group=group, depth=depth[stack])],
            )
        elif (calls_of := np.flatnonzero(sampled.thread == thread)).size:
            under = f"sampled stack {name}"
            yield group, under, [_sampled_part(trace, sampled, calls_of, label=under, group=group)]


def _sampled_part(trace: Trace, calls: SampledCalls, mine: Int64, *, label: str, group: str) -> _Part:
    frame = calls.frame[mine]
    return _Part(
        group=group,
        label=label,
        start=calls.start[mine],
        end=calls.end[mine],
        name=trace.rows["frames"]["name"][frame],
        category=np.full(len(mine), Category.PYTHON, np.uint8),
        table=TABLES.index("frames"),
        row=frame,
        depth=calls.depth[mine],
    )


def _loading(trace: Trace) -> list[int]:
    """Names of calls that load code."""
    return [code for code in np.unique(trace.rows["calls"]["name"]).tolist() if loads_code(trace.text(code))]


def _host_collectives(trace: Trace) -> Iterator[tuple[str, str, list[_Part]]]:
    """Collectives that are neither kernels nor host spans of the tables above."""
    result = trace.rows["collectives"]
    rows = np.flatnonzero((result["kernel"] == MISSING) & (result["slice"] == MISSING))
    if len(rows):
        categories = np.full(len(rows), Category.COLLECTIVE)
        yield "collectives", "as recorded", [_part(trace, "collectives", rows, categories, label="as recorded")]


def _part(
    trace: Trace,
    table: str,
    rows: npt.ArrayLike,
    category: npt.ArrayLike,
    *,
    label: str,
    group: str = "",
    depth: Int64 | None = None,
) -> _Part:
    held, positions = trace.rows[table], np.asarray(rows, np.int64)
    return _Part(
        group=group,
        label=label,
        start=held["start_ns"][positions],
        end=held["end_ns"][positions],
        name=held["name"][positions],
        category=np.asarray(category, np.uint8),
        table=TABLES.index(table),
        row=positions,
        depth=np.zeros(len(positions), np.int64) if depth is None else np.asarray(depth, np.int64),
    )


def _kernel_categories(trace: Trace) -> UInt8:
    kernels = trace.rows["kernels"]
    codes, positions = np.unique(kernels["name"], return_inverse=True)
    known = np.array([kernel_category(trace.text(int(code))) for code in codes], np.uint8)
    results = known[positions] if len(codes) else np.empty(0, np.uint8)
    return np.where(kernels["communication"], np.uint8(Category.COLLECTIVE), results)


def _named(trace: Trace, names: npt.NDArray[np.generic], others: UInt8) -> UInt8:
    """Category by name; ``others`` if unknown."""
    if not len(names):
        return others
    codes, at = np.unique(names, return_inverse=True)
    unknown = 255
    results = np.array([OF_CLASS.get(op_class(trace.text(int(code))) or "", unknown) for code in codes], np.uint8)[at]
    return np.where(results == unknown, others, results)


def _mapped(
    kinds: npt.NDArray[np.generic],
    words: dict[IntEnum, Category] | dict[SliceKind, Category] | dict[CallKind, Category],
) -> UInt8:
    known = np.zeros(max(int(kind) for kind in words) + 1, np.uint8)
    for kind, category in words.items():
        known[int(kind)] = category
    result: UInt8 = known[kinds]
    return result


def _depths(parents: npt.NDArray[np.generic], counted: npt.NDArray[np.bool_]) -> Int64:
    """Ancestors of each row that are ``counted``; parents come before their children in the table."""
    depth = np.where(parents == MISSING, 0, MISSING).astype(np.int64)
    left = np.flatnonzero(depth == MISSING)
    while len(left):
        above = depth[parents[left]]
        known = above != MISSING
        depth[left[known]] = above[known] + counted[parents[left[known]]]
        left = left[~known]
    return depth


def _apart(start: Int64, end: Int64, depth: Int64) -> Int64:
    """Depths such that two events of one depth do not overlap; depths without overlaps are kept.

    Later events of an overlap get new depths below all others (a stream with parallel kernels).
    """
    results = depth.copy()
    below = int(depth.max(initial=0)) + 1
    for level in np.unique(depth).tolist():
        rows = np.flatnonzero(depth == level)
        rows = rows[np.lexsort((end[rows], start[rows]))]
        reached = np.maximum.accumulate(end[rows])
        if not (start[rows][1:] < reached[:-1]).any():
            continue
        spilled = _packed(start[rows], end[rows])
        moved = spilled > 0
        results[rows[moved]] = below + spilled[moved] - 1
        below += int(spilled.max())
    return results


def _packed(start: Int64, end: Int64) -> Int64:
    """The lowest free line for each interval, in the order of their starts."""
    lines = np.zeros(len(start), np.int64)
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    used = 0
    for index, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            line = heapq.heappop(free)
        else:
            line, used = used, used + 1
        lines[index] = line
        heapq.heappush(busy, (finish, line))
    return lines


# Counters on the timeline's clock: recorded samples, and memory in use. Each is a step function of time.


Float64 = npt.NDArray[np.float64]


class Series(Struct, frozen=True, kw_only=True):
    """``values[i]`` holds from ``times[i]`` (ns, sorted) up to the next. ``unit``: ``bytes``, or as recorded."""

    label: str
    unit: str
    times: Int64
    values: Float64


def series_of(trace: Trace) -> Iterator[Series]:
    """Memory in use by device, then the counters of the recording by name."""
    if not trace.source.events_only:
        for memory in trace.fact(memory_timelines):
            if memory.axis == "ns" and not memory.detail and memory.space != "program":
                curve = memory.live()
                if len(curve.positions):
                    values = curve.bytes.astype(np.float64)
                    yield Series(label=f"memory of {memory.label}", unit="bytes", times=curve.positions, values=values)
    rows = trace.rows["counters"]
    for code in np.unique(rows["name"]).tolist():
        mine = np.flatnonzero(rows["name"] == code)
        mine = mine[np.argsort(rows["time_ns"][mine], kind="stable")]
        label = trace.text(int(code))
        unit = "bytes" if "bytes" in label.lower() else ""
        yield Series(label=label, unit=unit, times=rows["time_ns"][mine], values=rows["value"][mine])


def save(series: Series, folder: Path, number: int) -> None:
    """Write one series as plain arrays."""
    np.save(folder / f"counter_{number}_times.npy", series.times)
    np.save(folder / f"counter_{number}_values.npy", series.values)


def piece(times: Int64, values: Float64, edges: Int64) -> tuple[Float64, Float64]:
    """Lowest and highest value between neighbouring edges: shapes (n - 1,); NaN before the first sample.

    A pixel covers the value at its start and every sample in it, so that no spike is lost at any zoom.
    """
    positions = np.searchsorted(times, edges, side="right")
    first, stop = positions[:-1], positions[1:]
    held = np.where(first > 0, values[np.maximum(first - 1, 0)] if len(values) else np.nan, np.nan)
    low, high = held.copy(), held.copy()
    filled = stop > first
    if filled.any():
        starts = first[filled]
        ends = stop[filled]
        bounds = np.column_stack((starts, ends)).ravel()
        padded = np.append(values, values[-1])
        lows = np.minimum.reduceat(padded, bounds)[::2]
        highs = np.maximum.reduceat(padded, bounds)[::2]
        low[filled] = np.fmin(low[filled], lows)
        high[filled] = np.fmax(high[filled], highs)
    return low, high
