"""Which kernels, ops, modules and source lines take the device's time; on the host alone, which ops.

Times are sums of durations within the steps, so streams side by side may sum to more than the steps; a share is of the
sum of all work. A kernel belongs to the op that launched it, and to that op's module and line where they are known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfscope.analyzers.ops.achieved import (
    NOTHING,
    Achieved,
    Utilization,
    copy_costs,
    host_costs,
    kernel_costs,
    utilization,
)
from perfscope.analyzers.ops.kernel_names import short_kernel_name
from perfscope.analyzers.time import UNKNOWN_SITE, CallSite, call_site, op_times, warm_windows
from perfscope.model.intervals import Int64, Intervals, covered, union
from perfscope.model.trace import MISSING, Trace

MOST_ROWS = 50
"""Rows kept of each kind and trace."""

MOST_PLACED = 1_000
"""Ops whose module and line are looked up, those with most device time first; it takes about 0.1 ms each."""

NOT_KNOWN = "(not known)"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRow:
    """Work of one name."""

    name: str
    total_ns: int
    calls: int
    line: str = ""
    """Where most of it was called from; empty where not known."""
    op: str = ""
    """The op that launched most of it."""
    achieved: Achieved = NOTHING
    """Of the part whose cost is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopWork:
    """The costliest work of one trace, or of several together."""

    total_ns: int
    """Of all work, listed or not."""
    steps: int
    """0: the times are of the whole capture."""
    on_host: bool
    """Without an accelerator: ops of the host by the time in them and in nothing inside them."""
    kernels: tuple[WorkRow, ...] = ()
    ops: tuple[WorkRow, ...] = ()
    modules: tuple[WorkRow, ...] = ()
    lines: tuple[WorkRow, ...] = ()
    achieved: Achieved = NOTHING
    """Of all work; its time over ``total_ns`` is the share that has a known cost."""
    utilization: tuple[Utilization, ...] = ()
    """Of the steps, by device and peak; none without matrix products or peaks."""

    @property
    def costed_share(self) -> float:
        """Of the time of all work, 0 to 1."""
        return self.achieved.time_ns / self.total_ns if self.total_ns else 0.0


def top_work(trace: Trace) -> TopWork | None:
    """The costliest work in the steps; ``None`` where neither device work nor ops were recorded."""
    windows = trace.fact(warm_windows)
    steps = union(windows.starts, windows.ends)
    tables = {name: _inside(trace, name, steps) for name in ("kernels", "copies")}
    if not any(length.any() for length in tables.values()):
        return _of_host(trace)
    rows = [(name, row) for name, length in tables.items() for row in np.flatnonzero(length).tolist()]
    of_op: dict[int, _Sum] = defaultdict(_Sum)
    by_kernel: dict[str, _Sum] = defaultdict(_Sum)
    costs = {"kernels": trace.fact(kernel_costs), "copies": trace.fact(copy_costs)}
    for name, row in rows:
        table, length = trace.rows[name], int(tables[name][row])
        op = int(table["op"][row])
        achieved = costs[name].part(row, length, int(table["end_ns"][row] - table["start_ns"][row]))
        by_kernel[short_kernel_name(trace.text(int(table["name"][row])))].add(length, 1, op, achieved)
        of_op[op].add(length, 1, op, achieved)
    used = utilization(trace, tables["kernels"], windows.whole_ns)
    work = _of_ops(trace, of_op, by_kernel)
    return replace(work, utilization=() if used is None else (used,))


def _of_ops(trace: Trace, of_op: Mapping[int, _Sum], by_kernel: Mapping[str, _Sum]) -> TopWork:
    """The work of ops by op, module and line; without kernels it is the host's."""
    places = _places(trace, of_op)
    return TopWork(
        total_ns=sum(item.total for item in of_op.values()),
        steps=len(trace.fact(warm_windows).numbers),
        on_host=not by_kernel,
        kernels=_rows(trace, by_kernel.items(), places),
        ops=_rows(trace, _by(of_op, lambda op: _op_name(trace, op)), places),
        modules=_rows(trace, _by(of_op, lambda op: module_label(places.get(op, UNKNOWN_SITE))), places),
        lines=_rows(trace, _by(of_op, lambda op: _line(places.get(op, UNKNOWN_SITE)) or NOT_KNOWN), places),
        achieved=sum((item.achieved for item in of_op.values()), NOTHING),
    )


def merge_top_work(parts: Sequence[TopWork]) -> TopWork | None:
    """Of several traces together: sums by name. Device work where any has it; ``None`` of none."""
    on_host = all(part.on_host for part in parts)
    chosen = [part for part in parts if part.on_host == on_host]
    if not chosen:
        return None
    return TopWork(
        total_ns=sum(part.total_ns for part in chosen),
        steps=sum(part.steps for part in chosen),
        on_host=on_host,
        kernels=_merged(part.kernels for part in chosen),
        ops=_merged(part.ops for part in chosen),
        modules=_merged(part.modules for part in chosen),
        lines=_merged(part.lines for part in chosen),
        achieved=sum((part.achieved for part in chosen), NOTHING),
        utilization=_merged_utilization(item for part in chosen for item in part.utilization),
    )


def _merged_utilization(parts: Iterable[Utilization]) -> tuple[Utilization, ...]:
    by_peak: dict[tuple[str, str], Utilization] = {}
    for part in parts:
        key = (part.device, part.dtype)
        by_peak[key] = by_peak[key] + part if key in by_peak else part
    return tuple(by_peak.values())


class _Sum:
    """Time and calls of one name, what they achieved, and the op with most of it."""

    __slots__ = ("achieved", "calls", "largest", "op", "total")

    def __init__(self) -> None:
        self.total, self.calls, self.op, self.largest, self.achieved = 0, 0, MISSING, -1, NOTHING

    def add(self, length: int, calls: int, op: int, achieved: Achieved) -> None:
        if achieved is not NOTHING:
            self.achieved += achieved
        self.total += length
        self.calls += calls
        if length > self.largest:
            self.largest, self.op = length, op


def _inside(trace: Trace, name: str, steps: Intervals) -> Int64:
    """Per row of ``kernels`` or ``copies``: its time within the steps."""
    rows = trace.rows[name]
    return covered(steps, rows["start_ns"], rows["end_ns"])


def _of_host(trace: Trace) -> TopWork | None:
    times, slices = trace.fact(op_times), trace.rows["slices"]
    windows = trace.fact(warm_windows)
    if not len(times.row):
        return None
    inside = covered(union(windows.starts, windows.ends), slices["start_ns"][times.row], slices["end_ns"][times.row])
    rows, own = times.row[inside > 0], times.self_ns[inside > 0]
    costs = host_costs(trace, rows.tolist())
    of_op: dict[int, _Sum] = defaultdict(_Sum)
    for row, length in zip(rows.tolist(), own.tolist(), strict=True):
        cost = costs.get(row)
        known = NOTHING if cost is None else Achieved(flops=cost.flops, bytes=cost.bytes, time_ns=length)
        of_op[row].add(length, 1, row, known)
    return _of_ops(trace, of_op, {})


def _places(trace: Trace, of_op: Mapping[int, _Sum]) -> dict[int, CallSite]:
    """Call sites of the ops with most time."""
    chosen = sorted((op for op in of_op if op != MISSING), key=lambda op: -of_op[op].total)[:MOST_PLACED]
    return {op: call_site(trace, op) for op in chosen}


def _by(of_op: Mapping[int, _Sum], name: Callable[[int], str]) -> Iterable[tuple[str, _Sum]]:
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for op, item in of_op.items():
        sums[name(op)].add(item.total, item.calls, op, item.achieved)
    return sums.items()


def _rows(trace: Trace, sums: Iterable[tuple[str, _Sum]], places: dict[int, CallSite]) -> tuple[WorkRow, ...]:
    ordered = sorted(sums, key=lambda item: (-item[1].total, item[0]))[:MOST_ROWS]
    return tuple(
        WorkRow(
            name=name,
            total_ns=item.total,
            calls=item.calls,
            line=_line(places.get(item.op, UNKNOWN_SITE)),
            op=_op_name(trace, item.op),
            achieved=item.achieved,
        )
        for name, item in ordered
    )


def _merged(parts: Iterable[tuple[WorkRow, ...]]) -> tuple[WorkRow, ...]:
    rows: dict[str, list[WorkRow]] = defaultdict(list)
    for part in parts:
        for row in part:
            rows[row.name].append(row)
    return tuple(sorted(_sums(rows), key=lambda row: (-row.total_ns, row.name))[:MOST_ROWS])


def _sums(rows: dict[str, list[WorkRow]]) -> Iterator[WorkRow]:
    for name, members in rows.items():
        best = max(members, key=lambda row: row.total_ns)
        total, calls = sum(row.total_ns for row in members), sum(row.calls for row in members)
        achieved = sum((row.achieved for row in members), NOTHING)
        yield WorkRow(name=name, total_ns=total, calls=calls, line=best.line, op=best.op, achieved=achieved)


def _op_name(trace: Trace, op: int) -> str:
    return NOT_KNOWN if op == MISSING else trace.text(int(trace.rows["slices"]["name"][op]))


def module_label(site: CallSite) -> str:
    """The module of a call site, the numbers of layers that are alike left out: ``blocks.*.mlp``."""
    return re.sub(r"(?<=[._])\d+(?=\.|$)", "*", site.module) if site.module else NOT_KNOWN


def _line(site: CallSite) -> str:
    return "" if site.file is None else site.where().label()
