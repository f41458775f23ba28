"""Composition of the critical path: by part, and by kernel, op or function with its source line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.critical_path.graph import NodeKind
from perfscope.analyzers.critical_path.path import UNKNOWN_GAP, CriticalPath, critical_path, path_parts
from perfscope.analyzers.ops import short_kernel_name
from perfscope.analyzers.spans import nearest_ancestor
from perfscope.analyzers.time import call_site
from perfscope.model.intervals import Int64
from perfscope.model.trace import MISSING, SliceKind, Trace
from perfscope.native import library as native_library

MOST_ROWS = 30
"""Maximum number of rows kept per trace."""

OUTSIDE = "(outside every recorded span)"

_WORK = {NodeKind.KERNEL: "kernel", NodeKind.COMMUNICATION: "collective", NodeKind.COPY: "copy"}


class PathRow(Struct, frozen=True, kw_only=True):
    """Time on the path in work with one name."""

    where: str
    """``host``, ``kernel``, ``collective`` or ``copy``; or ``before`` one of these: time until it could begin."""
    name: str
    total_ns: int
    pieces: int
    op: str = ""
    """Op that launched device work."""
    line: str = ""
    module: str = ""


class PathSummary(Struct, frozen=True, kw_only=True):
    """The critical paths of a trace's steps together."""

    rank: int | None
    steps: int
    """Number of steps; 0 if the path covers the whole capture."""
    whole_ns: int
    """Length of the paths of all steps together, ns."""
    parts_ns: dict[str, int]
    """By ``PARTS``; they sum to ``whole_ns``."""
    rows: tuple[PathRow, ...]
    """Largest rows first, at most ``MOST_ROWS``."""


def path_summary(trace: Trace) -> PathSummary | None:
    """Return the composition of the path; ``None`` without a path."""
    path = trace.fact(critical_path)
    if path is None:
        return None
    rows = sorted(path_rows(trace), key=lambda row: (-row.total_ns, row.where, row.name))[:MOST_ROWS]
    return PathSummary(
        rank=trace.source.rank,
        steps=len(path.graph.windows.numbers),
        whole_ns=path.graph.windows.whole_ns,
        parts_ns=trace.fact(path_parts),
        rows=tuple(rows),
    )


def path_rows(trace: Trace) -> list[PathRow]:
    """Return all rows, one per name and kind; they sum to the steps."""
    path = trace.fact(critical_path)
    return [] if path is None else _rows(trace, path)


def _rows(trace: Trace, path: CriticalPath) -> list[PathRow]:
    """Return one row per name and kind, with the source line of its largest member."""
    slices, kinds, rows = trace.rows["slices"], path.graph.kind[path.node], path.rows()
    waits, known, lengths = path.gap != MISSING, path.gap != UNKNOWN_GAP, path.ends - path.starts
    names = np.where(np.isin(slices["name"], trace.rows["steps"]["name"]), MISSING, slices["name"])
    result = _by_name(trace, "host", _host_time(trace, path), names, np.arange(len(slices)))
    for kind, what in _WORK.items():
        work = trace.rows["copies" if kind == NodeKind.COPY else "kernels"]
        for gap, label in ((False, what), (True, f"before {what}")):
            chosen = (kinds == kind) & (waits == gap) & known
            time = _by_row(rows[chosen], lengths[chosen], len(work))
            result += _by_name(trace, label, time, work["name"], work["op"])
    return merge_rows(result)


class _Time(NamedTuple):
    """Time on the path by row of a table, one entry more than rows: the first is for missing rows."""

    total_ns: Int64
    pieces: Int64


def _by_row(rows: Int64, lengths: Int64, size: int, pieces: Int64 | None = None) -> _Time:
    """Sum lengths and numbers of pieces by row of a table of ``size`` rows; exact up to 2**53 ns."""
    counts = np.bincount(rows + 1, pieces, size + 1)
    return _Time(np.bincount(rows + 1, lengths, size + 1).astype(np.int64), counts.astype(np.int64))


def _host_time(trace: Trace, path: CriticalPath) -> _Time:
    """Return the time by row of ``slices``: the op around the innermost span, or that span outside all ops."""
    slices = trace.rows["slices"]
    size = len(slices)
    waits = path.graph.on_host[path.node] & (path.gap != MISSING) & (path.gap != UNKNOWN_GAP)
    own = _by_slice(path, size)
    waited = _by_row(path.rows()[waits], (path.ends - path.starts)[waits], size)
    ops = nearest_ancestor(trace, np.arange(size), slices["kind"] == SliceKind.OP)
    owner = np.append(MISSING, np.where(ops == MISSING, np.arange(size), ops))
    return _by_row(owner, own.total_ns + waited.total_ns, size, own.pieces + waited.pieces)


def _by_slice(path: CriticalPath, size: int) -> _Time:
    """Return the host's own time by the innermost span."""
    if native_library() is not None:
        from perfscope.native import sweep

        own, lane = path.host_own, path.graph.lane
        return _Time(*sweep.time_by_slice(lane.bounds, lane.slice, path.starts[own], path.ends[own], size))
    pieces = path.host_pieces()
    return _by_row(path.graph.lane.slice[pieces.piece], pieces.ends - pieces.starts, size)


def _by_name(trace: Trace, where: str, time: _Time, names: np.ndarray, ops: np.ndarray) -> list[PathRow]:
    """Return the rows of a table by ``names``.

    ``ops``: row of ``slices`` with the source line, per row of the table.
    """
    result = []
    slices = trace.rows["slices"]["name"]
    for code, (total, pieces, row) in _grouped(time, names).items():
        op = MISSING if row == MISSING else int(ops[row])
        site = call_site(trace, op)
        result.append(
            PathRow(
                where=where,
                name=OUTSIDE if code == MISSING else short_kernel_name(trace.text(code)),
                total_ns=total,
                pieces=pieces,
                op="" if op == MISSING or where == "host" else trace.text(int(slices[op])),
                line="" if site.file is None else site.where().label(),
                module=site.module or "",
            )
        )
    return result


def _grouped(time: _Time, names: np.ndarray) -> dict[int, tuple[int, int, int]]:
    """Return name code -> (total length, number of pieces, row with the most time); ``MISSING`` for missing rows."""
    present = np.flatnonzero(time.pieces)
    sums, codes = time.total_ns[present], np.append(MISSING, names)[present]
    named = _by_row(codes, sums, int(codes.max(initial=MISSING)) + 1, time.pieces[present])
    most = np.zeros(len(named.pieces), np.int64)
    np.maximum.at(most, codes + 1, sums)
    largest = np.flatnonzero(sums == most[codes + 1])
    found, first = np.unique(codes[largest], return_index=True)
    return {
        code: (int(named.total_ns[code + 1]), int(named.pieces[code + 1]), int(row))
        for code, row in zip(found.tolist(), present[largest[first]] - 1, strict=True)
    }


def merge_rows(rows: Iterable[PathRow]) -> list[PathRow]:
    """Merge rows of one kind and name, with the source line of the largest."""
    merged: dict[tuple[str, str], PathRow] = {}
    for row in sorted(rows, key=lambda row: -row.total_ns):
        key = (row.where, row.name)
        known = merged.get(key)
        if known is not None:
            row = replace(known, total_ns=known.total_ns + row.total_ns, pieces=known.pieces + row.pieces)
        merged[key] = row
    return list(merged.values())


def path_share(summary: PathSummary, parts: Sequence[str]) -> float:
    """Return the share of the steps taken by the given parts of the path, 0 to 1."""
    time = sum(summary.parts_ns.get(part, 0) for part in parts)
    return time / summary.whole_ns if summary.whole_ns else 0.0
