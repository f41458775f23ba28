"""Kernels, ops, modules and source lines by device time; without a device, ops by host time.

Times are sums of durations within the steps, so overlapping streams may sum to more than the steps; a share refers to
the sum of all work. A kernel belongs to the op that launched it, and to that op's module and line if known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.ops.achieved import (
    NOTHING,
    Achieved,
    Utilization,
    copy_costs,
    kernel_costs,
    utilization,
)
from perfscope.analyzers.ops.host_costs import host_costs
from perfscope.analyzers.ops.kernel_names import short_kernel_name
from perfscope.analyzers.spans import op_times
from perfscope.analyzers.time import MOST_SITES, UNKNOWN_SITE, CallSite, call_site, device_doubts, warm_windows
from perfscope.model.intervals import Int64, Intervals, covered, numbered, union
from perfscope.model.plugins import load, plugins
from perfscope.model.trace import MISSING, Trace

MOST_ROWS = 50
"""Maximum number of rows kept per kind and trace."""

NOT_KNOWN = "(not known)"


class WorkRow(Struct, frozen=True, kw_only=True):
    """Work of one name."""

    name: str
    total_ns: int
    """Sum of durations within the steps."""
    calls: int
    line: str = ""
    """Call site of most of it; empty if unknown."""
    op: str = ""
    """Op that launched most of it."""
    achieved: Achieved = NOTHING
    """Achieved rates of the part with known cost."""
    limit: str = ""
    """Limit of the kernel by a report of another tool: ``memory: DRAM 91%``."""


class TopWork(Struct, frozen=True, kw_only=True):
    """The costliest work of one or more traces."""

    total_ns: int
    """Time of all work, listed or not."""
    steps: int
    """Number of steps; 0 if the times cover the whole capture."""
    on_host: bool
    """Whether there is no accelerator: ops of the host by self time."""
    devices: int = 1
    """Number of devices of a process: times are sums over them."""
    kernels: tuple[WorkRow, ...] = ()
    ops: tuple[WorkRow, ...] = ()
    modules: tuple[WorkRow, ...] = ()
    lines: tuple[WorkRow, ...] = ()
    achieved: Achieved = NOTHING
    """Achieved rates of all work; its time over ``total_ns`` is the share with known cost."""
    utilization: tuple[Utilization, ...] = ()
    """Utilization in the steps, by device and peak; empty without matrix products or peaks."""

    @property
    def costed_share(self) -> float:
        """Share of the time of all work, 0 to 1."""
        return self.achieved.time_ns / self.total_ns if self.total_ns else 0.0


def top_work(trace: Trace) -> TopWork | None:
    """Return the costliest work in the steps; ``None`` if neither device work nor ops were recorded.

    Also ``None`` if durations of kernels are not plausible.
    """
    if len(trace.rows["kernels"]) and any(doubt.work for doubt in trace.fact(device_doubts)):
        return None
    windows = trace.fact(warm_windows)
    steps = union(windows.starts, windows.ends)
    tables = {name: _inside(trace, name, steps) for name in ("kernels", "copies")}
    if not any(length.any() for length in tables.values()):
        return _of_host(trace)
    parts = [_device_work(trace, name, length) for name, length in tables.items()]
    work = _Work(*(np.concatenate(columns, axis=-1) for columns in zip(*parts, strict=True)))
    codes = np.concatenate([trace.rows[name]["name"][np.flatnonzero(length)] for name, length in tables.items()])
    names, index = numbered(codes)
    texts = [short_kernel_name(trace.text(code)) for code in names.tolist()]
    used = utilization(trace, tables["kernels"], windows.whole_ns)
    devices = {device for name, length in tables.items() for device in trace.rows[name]["device"][length > 0].tolist()}
    found = _of_ops(trace, work, texts, index)
    return replace(found, devices=len(devices), utilization=() if used is None else (used,))


class _Work(NamedTuple):
    """Rows of device work, or their sums, as arrays of equal length."""

    op: Int64
    """Op that launched it, or most of it; ``MISSING`` if unknown."""
    total: Int64
    """ns."""
    calls: Int64
    cost: npt.NDArray[np.float64]
    """(5, rows): the fields of ``Achieved``."""

    def summed(self, group: Int64, count: int) -> _Work:
        """Return one row per group, summed in the order of the rows."""
        op, total, calls = np.full(count, MISSING, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
        most = np.zeros(count, np.int64)
        np.maximum.at(most, group, self.total)
        largest = np.flatnonzero(self.total == most[group])[::-1]
        op[group[largest]] = self.op[largest]  # of equal ones the first stays
        np.add.at(total, group, self.total)
        np.add.at(calls, group, self.calls)
        return _Work(op, total, calls, np.stack([np.bincount(group, row, count) for row in self.cost]))

    def achieved(self, row: int) -> Achieved:
        """Return the achieved rates of one row."""
        flops, moved, time, roof, roofed = self.cost[:, row].tolist()
        return Achieved(flops=flops, bytes=moved, time_ns=int(time), roof_ns=roof, roofed_ns=int(roofed))


def _device_work(trace: Trace, name: str, length: Int64) -> _Work:
    """Return the rows of ``kernels`` or ``copies`` with time in the steps."""
    table, costs = trace.rows[name], trace.fact(kernel_costs if name == "kernels" else copy_costs)
    rows = np.flatnonzero(length)
    time, whole = length[rows], (table["end_ns"] - table["start_ns"])[rows]
    costed = ~np.isnan(costs.bytes[rows])
    roofed = costed & ~np.isnan(costs.roof_ns[rows])
    share = time / whole  # work with time in the steps has a length
    cost = (
        np.where(costed, share * costs.flops[rows], 0.0),
        np.where(costed, share * costs.bytes[rows], 0.0),
        np.where(costed, time, 0.0),
        np.where(roofed, share * costs.roof_ns[rows], 0.0),
        np.where(roofed, time, 0.0),
    )
    return _Work(table["op"][rows].astype(np.int64), time, np.ones(len(rows), np.int64), np.stack(cost))


def _of_ops(trace: Trace, work: _Work, kernels: Sequence[str], kernel: Int64) -> TopWork:
    """Return the work by kernel, op, module and line; without kernels, that of the host.

    ``kernel``: index in ``kernels`` of each row.
    """
    ops, index = numbered(work.op)
    first = np.empty(len(ops), np.int64)
    first[index[::-1]] = np.arange(len(index))[::-1]
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    of_op = work.summed(rank[index], len(order))
    names = trace.rows["slices"]["name"]
    codes = np.full(len(order), MISSING, np.int64)
    known = np.flatnonzero(of_op.op != MISSING)
    codes[known] = names[of_op.op[known]]
    different, op_name = numbered(codes)
    texts = list(map(trace.text, different.tolist()))
    placed = known[np.argsort(-of_op.total[known], kind="stable")[:MOST_SITES]]
    sites = [call_site(trace, op) for op in of_op.op[placed].tolist()]
    site = np.zeros(len(order), np.int64)
    site[placed] = np.arange(1, len(placed) + 1)
    places = dict(zip(of_op.op[placed].tolist(), sites, strict=True))
    lines = [NOT_KNOWN, *(_line(place) or NOT_KNOWN for place in sites)]
    limits = _limits(trace)
    by_kernel = _rows(trace, work, kernels, kernel, places) if kernels else ()
    return TopWork(
        total_ns=int(of_op.total.sum()),
        steps=len(trace.fact(warm_windows).numbers),
        on_host=not kernels,
        kernels=tuple(replace(row, limit=limits[row.name]) if row.name in limits else row for row in by_kernel),
        ops=_rows(trace, of_op, [*texts, NOT_KNOWN], np.where(of_op.op == MISSING, len(texts), op_name), places),
        modules=_rows(trace, of_op, [NOT_KNOWN, *map(module_label, sites)], site, places),
        lines=_rows(trace, of_op, lines, site, places),
        achieved=of_op.summed(np.zeros(len(order), np.int64), 1).achieved(0),
    )


def merge_top_work(parts: Sequence[TopWork]) -> TopWork | None:
    """Merge several traces: sums by name. Device work if any trace has it; ``None`` without traces."""
    on_host = all(part.on_host for part in parts)
    chosen = [part for part in parts if part.on_host == on_host]
    if not chosen:
        return None
    return TopWork(
        total_ns=sum(part.total_ns for part in chosen),
        steps=sum(part.steps for part in chosen),
        on_host=on_host,
        devices=max(part.devices for part in chosen),
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


def _inside(trace: Trace, name: str, steps: Intervals) -> Int64:
    """Return the time within the steps per row of ``kernels`` or ``copies``."""
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
    known = [costs.get(row) for row in rows.tolist()]
    cost = np.zeros((5, len(rows)))
    cost[0] = [0 if item is None else item.flops for item in known]
    cost[1] = [0 if item is None else item.bytes for item in known]
    cost[2] = np.where([item is None for item in known], 0, own)
    return _of_ops(trace, _Work(rows, own, np.ones(len(rows), np.int64), cost), (), np.empty(0, np.int64))


def _rows(
    trace: Trace, work: _Work, texts: Sequence[str], index: Int64, places: Mapping[int, CallSite]
) -> tuple[WorkRow, ...]:
    """Return the work by name, largest first; ``index``: index in ``texts`` of each row."""
    numbers: dict[str, int] = {}
    number = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    sums, names = work.summed(number[index], len(numbers)), list(numbers)
    total = sums.total.tolist()
    ordered = sorted(np.flatnonzero(sums.calls).tolist(), key=lambda row: (-total[row], names[row]))
    return tuple(
        WorkRow(
            name=names[row],
            total_ns=total[row],
            calls=int(sums.calls[row]),
            line=_line(places.get(int(sums.op[row]), UNKNOWN_SITE)),
            op=_op_name(trace, int(sums.op[row])),
            achieved=sums.achieved(row),
        )
        for row in ordered[:MOST_ROWS]
    )


def _limits(trace: Trace) -> dict[str, str]:
    """Return what limits kernels by their short names, from plug-ins that read reports on kernels."""
    homes = [plugin.kernel_notes for plugin in plugins() if plugin.kernel_notes] if trace.documents else []
    notes = (load(home)(trace) for home in homes)
    return {short_kernel_name(name): text for found in notes for name, text in reversed(found.items())}


def _merged(parts: Iterable[tuple[WorkRow, ...]]) -> tuple[WorkRow, ...]:
    rows: dict[str, list[WorkRow]] = defaultdict(list)
    for part in parts:
        for row in part:
            rows[row.name].append(row)
    return tuple(sorted(_sums(rows), key=lambda row: (-row.total_ns, row.name))[:MOST_ROWS])


def _sums(rows: dict[str, list[WorkRow]]) -> Iterator[WorkRow]:
    for members in rows.values():
        best = max(members, key=lambda row: row.total_ns)
        total, calls = sum(row.total_ns for row in members), sum(row.calls for row in members)
        achieved = sum((row.achieved for row in members), NOTHING)
        yield replace(best, total_ns=total, calls=calls, achieved=achieved)


def _op_name(trace: Trace, op: int) -> str:
    return NOT_KNOWN if op == MISSING else trace.text(int(trace.rows["slices"]["name"][op]))


def module_label(site: CallSite) -> str:
    """Return the module of a call site, without the numbers of equal layers: ``blocks.*.mlp``."""
    return re.sub(r"(?<=[._])\d+(?=\.|$)", "*", site.module) if site.module else NOT_KNOWN


def _line(site: CallSite) -> str:
    return "" if site.file is None else site.where().label()
