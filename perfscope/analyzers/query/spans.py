"""Host spans as a table: self and inner time on the host, and device work launched by each and inside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perfscope.analyzers.spans import named_slices, nearest_ancestor, subtree_ends
from perfscope.model.frames import parse_module
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, SliceKind, Trace


def span_rows(traces: Sequence[Trace]) -> list[tuple[Any, ...]]:
    """One row per row of ``slices``, in the order of its columns; ``None`` without a parent or device work."""
    rows: list[tuple[Any, ...]] = []
    for source, trace in enumerate(traces):
        slices = trace.rows["slices"]
        parents = slices["parent"].astype(np.int64)
        depth = _depth(parents)
        times, works, first, last = _work(trace)
        inner_times, inner_works = (_inside(trace, values) for values in (times, works))
        for level in range(int(depth.max(initial=0)), 0, -1):
            members = np.flatnonzero(depth == level)
            np.minimum.at(first, parents[members], first[members])
            np.maximum.at(last, parents[members], last[members])
        lengths = slices["end_ns"] - slices["start_ns"]
        nested = parents != MISSING
        own = lengths.copy()
        np.subtract.at(own, parents[nested], lengths[nested])
        modules = nearest_ancestor(trace, parents, named_slices(trace, parse_module))
        kinds = {int(kind): kind.name.lower() for kind in SliceKind}
        idle = (inner_works == 0).tolist()
        columns = (
            [trace.text(code) for code in slices["name"].tolist()],
            [kinds[kind] for kind in slices["kind"].tolist()],
            slices["thread"].tolist(),
            _known(parents),
            depth.tolist(),
            _known(modules),
            slices["start_ns"].tolist(),
            lengths.tolist(),
            own.tolist(),
            times.tolist(),
            works.tolist(),
            inner_times.tolist(),
            inner_works.tolist(),
            [None if none else value for value, none in zip(first.tolist(), idle, strict=True)],
            [None if none else value for value, none in zip(last.tolist(), idle, strict=True)],
        )
        rows += [(source, trace.source.rank, row, *values) for row, values in enumerate(zip(*columns, strict=True))]
    return rows


def _known(rows: Int64) -> list[int | None]:
    return [None if row == MISSING else row for row in rows.tolist()]


def _depth(parents: Int64) -> Int64:
    depth, current = np.zeros(len(parents), np.int64), parents.copy()
    while len(active := np.flatnonzero(current != MISSING)):
        depth[active] += 1
        current[active] = parents[current[active]]
    return depth


def _work(trace: Trace) -> tuple[Int64, Int64, Int64, Int64]:
    """By row of ``slices``: summed ns, number, first begin and last end of the work that it launched itself."""
    count = len(trace.rows["slices"])
    times, works = np.zeros(count, np.int64), np.zeros(count, np.int64)
    limits = np.iinfo(np.int64)
    first, last = np.full(count, limits.max), np.full(count, limits.min)
    for table in ("kernels", "copies"):
        work = trace.rows[table]
        rows = np.flatnonzero(work["op"] != MISSING)
        ops = work["op"][rows]
        np.add.at(times, ops, (work["end_ns"] - work["start_ns"])[rows])
        np.add.at(works, ops, 1)
        np.minimum.at(first, ops, work["start_ns"][rows])
        np.maximum.at(last, ops, work["end_ns"][rows])
    return times, works, first, last


def _inside(trace: Trace, values: Int64) -> Int64:
    """Sum of ``values`` of each span and of all spans inside it."""
    sums = np.concatenate(([0], np.cumsum(values)))
    inside: Int64 = sums[trace.fact(subtree_ends)] - sums[:-1]
    return inside
