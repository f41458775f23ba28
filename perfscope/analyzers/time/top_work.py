"""Which kernels, ops, modules and source lines take the device's time; on the host alone, which ops.

Times are sums of durations within the steps, so streams side by side may sum to more than the steps; a share is of the
sum of all work. A kernel belongs to the op that launched it, and to that op's module and line where they are known.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.time.account import account_windows
from perfscope.analyzers.time.kernel_names import short_kernel_name
from perfscope.analyzers.time.sites import UNKNOWN_SITE, CallSite, call_site
from perfscope.analyzers.time.spans import op_times
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


def top_work(trace: Trace) -> TopWork | None:
    """The costliest work in the steps; ``None`` where neither device work nor ops were recorded."""
    windows = trace.fact(account_windows)
    steps = union(windows.starts, windows.ends)
    tables = {name: _inside(trace, name, steps) for name in ("kernels", "copies")}
    if not any(length.any() for length in tables.values()):
        return _of_host(trace, len(windows.numbers))
    rows = [(name, row) for name, length in tables.items() for row in np.flatnonzero(length).tolist()]
    total = sum(int(length.sum()) for length in tables.values())
    of_op: dict[int, list[int]] = defaultdict(lambda: [0, 0])
    by_kernel: dict[str, _Sum] = defaultdict(_Sum)
    for name, row in rows:
        table, length = trace.rows[name], int(tables[name][row])
        op = int(table["op"][row])
        by_kernel[short_kernel_name(trace.text(int(table["name"][row])))].add(length, 1, op)
        of_op[op][0] += length
        of_op[op][1] += 1
    places = _places(trace, of_op)
    return TopWork(
        total_ns=total,
        steps=len(windows.numbers),
        on_host=False,
        kernels=_rows(trace, by_kernel.items(), places),
        ops=_rows(trace, _by(of_op, lambda op: _op_name(trace, op)), places),
        modules=_rows(trace, _by(of_op, lambda op: _module(places.get(op, UNKNOWN_SITE))), places),
        lines=_rows(trace, _by(of_op, lambda op: _line(places.get(op, UNKNOWN_SITE)) or NOT_KNOWN), places),
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
    )


class _Sum:
    """Time and calls of one name, and the op with most of it."""

    __slots__ = ("calls", "largest", "op", "total")

    def __init__(self) -> None:
        self.total, self.calls, self.op, self.largest = 0, 0, MISSING, -1

    def add(self, length: int, calls: int, op: int) -> None:
        self.total += length
        self.calls += calls
        if length > self.largest:
            self.largest, self.op = length, op


def _inside(trace: Trace, name: str, steps: Intervals) -> Int64:
    """Per row of ``kernels`` or ``copies``: its time within the steps."""
    rows = trace.rows[name]
    return covered(steps, rows["start_ns"], rows["end_ns"])


def _of_host(trace: Trace, steps: int) -> TopWork | None:
    times, slices = trace.fact(op_times), trace.rows["slices"]
    windows = trace.fact(account_windows)
    if not len(times.row):
        return None
    inside = covered(union(windows.starts, windows.ends), slices["start_ns"][times.row], slices["end_ns"][times.row])
    rows, own = times.row[inside > 0], times.self_ns[inside > 0]
    of_op = {row: [length, 1] for row, length in zip(rows.tolist(), own.tolist(), strict=True)}
    places = _places(trace, of_op)
    return TopWork(
        total_ns=int(own.sum()),
        steps=steps,
        on_host=True,
        ops=_rows(trace, _by(of_op, lambda op: _op_name(trace, op)), places),
        modules=_rows(trace, _by(of_op, lambda op: _module(places.get(op, UNKNOWN_SITE))), places),
        lines=_rows(trace, _by(of_op, lambda op: _line(places.get(op, UNKNOWN_SITE)) or NOT_KNOWN), places),
    )


def _places(trace: Trace, of_op: dict[int, list[int]]) -> dict[int, CallSite]:
    """Call sites of the ops with most time."""
    chosen = sorted((op for op in of_op if op != MISSING), key=lambda op: -of_op[op][0])[:MOST_PLACED]
    return {op: call_site(trace, op) for op in chosen}


def _by(of_op: dict[int, list[int]], name: Callable[[int], str]) -> Iterable[tuple[str, _Sum]]:
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for op, (length, calls) in of_op.items():
        sums[name(op)].add(length, calls, op)
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
        yield WorkRow(name=name, total_ns=total, calls=calls, line=best.line, op=best.op)


def _op_name(trace: Trace, op: int) -> str:
    return NOT_KNOWN if op == MISSING else trace.text(int(trace.rows["slices"]["name"][op]))


def _module(site: CallSite) -> str:
    """The module, the numbers of layers that are alike left out: ``blocks.*.mlp``."""
    return re.sub(r"(?<=[._])\d+(?=\.|$)", "*", site.module) if site.module else NOT_KNOWN


def _line(site: CallSite) -> str:
    return "" if site.file is None else site.where().label()
