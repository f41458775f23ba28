"""Composition of one rank's steps, small enough to keep for every rank and to compare between ranks.

It has ops by shape (from the op graph, else from shapes that the profiler recorded, else from the detail pass), kernels
by grid, the program's lines from sampled stacks, and the time without a core.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from perfscope.analyzers.spans import named_slices, op_times
from perfscope.analyzers.time import (
    CoreSummary,
    CoreWaits,
    Situation,
    account_windows,
    call_site,
    core_summary,
    core_waits,
    main_thread,
    situation,
    step_windows,
    steps_at,
    thread_lines,
)
from perfscope.model.frames.kinds import FrameKind
from perfscope.model.intervals import EMPTY, Int64, Intervals, distinct_rows, numbered
from perfscope.model.trace import MISSING, Trace

if TYPE_CHECKING:
    from perfscope.model.op_graph import OpGraph

MOST_OPS = 2_000
"""Maximum number of (step, op, shapes) kept, most elements first."""
MOST_KERNELS = 5_000
"""Maximum number of (step, kernel, grid) kept, most time first."""
MOST_SITED = 200
"""Maximum number of ops whose line is looked up: each look-up takes tens of microseconds."""


class ShapedOp(Struct, frozen=True, kw_only=True):
    """Calls of one op with the same input shapes in one step."""

    step: int
    name: str
    shapes: tuple[tuple[int, ...], ...]
    """Shapes of its tensors."""
    calls: int
    file: str | None = None
    line: int | None = None

    @property
    def elements(self) -> int:
        """Elements of all inputs of all calls."""
        return self.calls * sum(map(math.prod, self.shapes))


class KernelTime(Struct, frozen=True):
    """Calls of one kernel with the same grid in one step."""

    calls: int
    ns: int


class HostLines(Struct, frozen=True, kw_only=True):
    """The program's line at each time of the recorded steps, from sampled stacks."""

    spans: Intervals
    line: Int64
    """Row of ``lines`` of each span."""
    lines: tuple[HostLine, ...]

    def times(self, window: tuple[int, int]) -> dict[HostLine, int]:
        """Return ns by line in a window."""
        low, high = np.maximum(self.spans.starts, window[0]), np.minimum(self.spans.ends, window[1])
        result: dict[HostLine, int] = defaultdict(int)
        for row in np.flatnonzero(high > low).tolist():
            result[self.lines[self.line[row]]] += int(high[row] - low[row])
        return result


class HostLine(Struct, frozen=True):
    """A line of the program."""

    file: str | None
    line: int | None
    function: str | None
    kind: FrameKind
    """Kind of the frames on the stack at it."""


class RankWork(Struct, frozen=True, kw_only=True):
    """Composition of one rank's steps."""

    ops: tuple[ShapedOp, ...]
    """Empty if shapes are unknown."""
    op_ns: Mapping[str, int]
    """Self time of each op on the host in the recorded steps."""
    kernels: Mapping[tuple[int, str, int], KernelTime]
    """Compute kernels by step, name and thread blocks (``MISSING``: not recorded)."""
    lines: HostLines
    waits: CoreWaits | None
    cores: CoreSummary | None
    situation: Situation

    def core_ns(self, window: tuple[int, int]) -> int:
        """Return the wait for a core in a window: that of the steps' thread, or of the thread that waited longest."""
        if self.waits is None:
            return 0
        low = np.maximum(self.waits.starts, window[0])
        inside = np.maximum(np.minimum(self.waits.ends, window[1]) - low, 0)
        lengths = np.maximum(self.waits.ends - self.waits.starts, 1)
        return int((np.maximum(self.waits.waits, self.waits.others) * (inside / lengths)).sum())


def rank_work(trace: Trace) -> RankWork:
    """Summarize the steps of a rank; a fact of the trace."""
    return RankWork(
        ops=_ops(trace),
        op_ns=_op_ns(trace),
        kernels=_kernels(trace),
        lines=_lines(trace),
        waits=trace.fact(core_waits),
        cores=trace.fact(core_summary),
        situation=trace.fact(situation),
    )


EXCHANGE = "c10d::alltoall_base_"
"""Op of torch's ``all_to_all_single``; its first input is the tensor that it fills."""


def received_on_host(trace: Trace) -> tuple[int, ...]:
    """Return the elements that each all-to-all of a step with shapes receives, in order; a fact of the trace.

    From the trace, or else from the detail pass. Empty if shapes are not recorded.
    """
    for source in (trace, trace.detail):
        slices = None if source is None else source.rows["slices"]
        if source is None or slices is None or not (slices["shapes"] != MISSING).any():
            continue
        rows = np.flatnonzero(named_slices(source, EXCHANGE.__eq__) & (slices["shapes"] != MISSING))
        rows = rows[np.argsort(slices["start_ns"][rows], kind="stable")]
        return tuple(
            math.prod(shapes[0]) if (shapes := _shapes(source.text(int(slices["shapes"][row])))) else 0
            for row in rows.tolist()
        )
    return ()


def _ops(trace: Trace) -> tuple[ShapedOp, ...]:
    for source in (trace, trace.detail):
        if source is not None and (source.rows["slices"]["shapes"] != MISSING).any():
            return _recorded_ops(source)
    return _graph_ops(trace.op_graph) if trace.op_graph is not None else ()


def _graph_ops(graph: OpGraph) -> tuple[ShapedOp, ...]:
    calls: Counter[tuple[str, tuple[tuple[int, ...], ...]]] = Counter()
    places: dict[tuple[str, tuple[tuple[int, ...], ...]], tuple[str | None, int | None]] = {}
    for op in graph.ops:
        if op.view or op.phase == "optimizer":
            continue
        key = (_profiled_name(op.name), tuple(graph.tensors[tensor].shape for tensor in op.inputs))
        calls[key] += 1
        places.setdefault(key, (op.file, op.line))
    return _largest(
        ShapedOp(step=graph.step, name=name, shapes=shapes, calls=count, file=places[name, shapes][0],
                 line=places[name, shapes][1])
        for (name, shapes), count in calls.items()
    )  # fmt: skip


def _profiled_name(name: str) -> str:
    """Return the profiler's name of an op of the graph: ``aten::add`` for ``aten.add.Tensor``."""
    namespace, _, rest = name.partition(".")
    return f"{namespace}::{rest.split('.')[0]}"


def _largest(ops: Iterable[ShapedOp]) -> tuple[ShapedOp, ...]:
    return tuple(sorted(ops, key=lambda op: (-op.elements, op.name))[:MOST_OPS])


def _step_numbers(trace: Trace, times_ns: Int64) -> Int64:
    """Return the number of the step at each time; ``MISSING`` outside of steps."""
    windows = trace.fact(step_windows)
    at = steps_at(trace, times_ns)
    order = np.argsort(windows.starts, kind="stable")
    numbers = np.asarray(windows.numbers, np.int64)[order] if windows.count else np.zeros(1, np.int64)
    return np.where(at == MISSING, MISSING, numbers[np.maximum(at, 0)])


def _recorded_ops(trace: Trace) -> tuple[ShapedOp, ...]:
    slices = trace.rows["slices"]
    times = trace.fact(op_times)
    rows = times.row[slices["shapes"][times.row] != MISSING]
    steps = _step_numbers(trace, slices["start_ns"][rows])
    rows, steps = rows[steps != MISSING], steps[steps != MISSING]
    if not len(rows):
        return ()
    names, shapes = slices["name"][rows], slices["shapes"][rows]
    first, kind = distinct_rows(steps, names, shapes)
    columns = (steps[first], names[first], shapes[first], np.bincount(kind), rows[first])
    of_text: dict[int, tuple[tuple[int, ...], ...]] = {}
    ops = []
    for step, name, code, count, row in zip(*(column.tolist() for column in columns), strict=True):
        text = trace.text(name)
        if text.startswith("aten::"):
            if code not in of_text:
                of_text[code] = _shapes(trace.text(code))
            ops.append((ShapedOp(step=step, name=text, shapes=of_text[code], calls=count), row))
    ops.sort(key=lambda item: (-item[0].elements, item[0].name))
    result = []
    for number, (op, row) in enumerate(ops[:MOST_OPS]):
        site = call_site(trace, row) if number < MOST_SITED else None
        result.append(op if site is None else ShapedOp(step=op.step, name=op.name, shapes=op.shapes, calls=op.calls,
                                                       file=site.file, line=site.line))  # fmt: skip
    return tuple(result)


def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of tensors in the profiler's text; other inputs are empty in it."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    return tuple(
        tuple(shape)
        for shape in (found if isinstance(found, list) else ())
        if isinstance(shape, list) and shape and all(isinstance(size, int) and size >= 0 for size in shape)
    )


def _op_ns(trace: Trace) -> dict[str, int]:
    times, names = trace.fact(op_times), trace.rows["slices"]["name"]
    codes, inverse = numbered(names[times.row])
    total = np.bincount(inverse, weights=times.self_ns, minlength=len(codes))
    return {trace.text(int(code)): round(ns) for code, ns in zip(codes.tolist(), total.tolist(), strict=True)}


def _kernels(trace: Trace) -> dict[tuple[int, str, int], KernelTime]:
    kernels = trace.rows["kernels"]
    rows = np.flatnonzero(~kernels["communication"])
    if not len(rows) or not trace.fact(step_windows).count:
        return {}
    steps = _step_numbers(trace, kernels["start_ns"][rows])
    rows, steps = rows[steps != MISSING], steps[steps != MISSING]
    if not len(rows):
        return {}
    names, blocks = kernels["name"][rows], kernels["blocks"][rows]
    first, kind = distinct_rows(steps, names, blocks)
    total = np.bincount(kind, weights=(kernels["end_ns"] - kernels["start_ns"])[rows])
    order = np.argsort(-total, kind="stable")[:MOST_KERNELS]
    columns = (steps[first], names[first], blocks[first], np.bincount(kind), total.astype(np.int64))
    return {
        (step, trace.text(name), grid): KernelTime(calls, ns)
        for step, name, grid, calls, ns in zip(*(column[order].tolist() for column in columns), strict=True)
    }


def _lines(trace: Trace) -> HostLines:
    windows = trace.fact(account_windows)
    if not len(trace.rows["samples"]) or not len(windows.starts):
        return HostLines(spans=EMPTY, line=np.empty(0, np.int64), lines=())
    spans = Intervals(windows.starts.astype(np.int64), windows.ends.astype(np.int64))
    found = thread_lines(trace, trace.fact(main_thread), spans)
    lines: dict[HostLine, int] = {}
    numbers = [
        lines.setdefault(HostLine(site.file, site.line, site.function, kind), len(lines)) for site, kind in found.lines
    ]
    return HostLines(spans=found.spans, line=np.array(numbers, np.int64)[found.line], lines=tuple(lines))
