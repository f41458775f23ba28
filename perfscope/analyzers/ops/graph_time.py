"""Time of each op of the op graph in the timed steps of the same program.

The op graph has no times and the timed trace no dataflow, but both contain the same ops in the same order. Within each
traced step the sequence of op names is aligned with the graph's; the device time of an op is that of the kernels
launched in its host span, and without an accelerator that of the span itself.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.graph import base_name
from perfscope.analyzers.spans import NO_WORK, WorkTime, named_slices, outermost, removed_inside, union_of, work_time
from perfscope.analyzers.time import account_windows, step_windows, time_with_core, whole_ns
from perfscope.model.finding import Removed
from perfscope.model.intervals import union
from perfscope.model.kernel_cost import TRITON
from perfscope.model.trace import MISSING, SliceKind, Trace

ENOUGH_MATCHED = 0.9
"""Share of the graph's ops that must be found in a step. Steps of one program differ by a skipped branch or a print,
not by a tenth of their ops; with fewer, the structure step ran something else.
"""

LOOKAHEAD = 64
"""Maximum number of ops to skip on either side until the sequences agree again: a branch, not a layer."""

SAME = {"aten::_index_put_impl": "aten::index_put", "aten::new_zeros": "aten::zeros"}
"""Under a dispatch mode, in which the graph is recorded, autograd adds gradients out of place (``add``, else ``add_``)
and fills index gradients with ``new_zeros`` and ``index_put`` (else ``zeros``, ``_index_put_impl_``).
"""


class GraphTime(Struct, frozen=True, kw_only=True):
    """Host spans of the graph's ops, by traced step."""

    spans: tuple[npt.NDArray[np.int64], ...]
    """By matched step: row of ``slices`` for each op of the graph, ``MISSING`` if none was found."""
    matched_share: float
    """Share of the graph's ops (without views) found in the steps that agree best; 0 without a traced step."""
    on_device: bool
    """Whether time is that of kernels; False: of host spans, without an accelerator."""

    @property
    def known(self) -> bool:
        """Whether enough ops were found for times to be known."""
        return bool(self.spans)


def graph_time(trace: Trace) -> GraphTime:
    """Find the ops of the trace's op graph in its traced steps."""
    graph, slices = trace.op_graph, trace.rows["slices"]
    on_device = bool(len(trace.rows["kernels"]))
    if graph is None or not len(slices):
        return GraphTime(spans=(), matched_share=0.0, on_device=on_device)
    wanted = [index for index, op in enumerate(graph.ops) if not op.view and not op.name.startswith(TRITON)]
    names = [_trace_name(base_name(graph.ops[index])) for index in wanted]
    spans, best = [], 0.0
    for rows in _steps(trace, _outermost(trace, set(names))):
        found = align(names, [_plain(trace.strings[code]) for code in slices["name"][rows]])
        share = sum(position != MISSING for position in found) / len(names) if names else 0.0
        best = max(best, share)
        if share >= ENOUGH_MATCHED:
            placed = np.full(len(graph.ops), MISSING, np.int64)
            for index, position in zip(wanted, found, strict=True):
                if position != MISSING:
                    placed[index] = rows[position]
            spans.append(placed)
    return GraphTime(spans=tuple(spans), matched_share=best, on_device=on_device)


def judged_ns(trace: Trace) -> int:
    """Return the time of all steps that shares of ops refer to: without an accelerator, without waits for a core."""
    if len(trace.rows["kernels"]):
        return whole_ns(trace)
    windows = trace.fact(account_windows)
    return time_with_core(trace, union(windows.starts, windows.ends))


def ops_time(trace: Trace, ops: Iterable[int]) -> WorkTime | None:
    """Return the time of a set of graph ops per step, the mean over traced steps; None if unknown."""
    place = trace.fact(graph_time)
    if not place.known:
        return None
    chosen = np.fromiter(ops, np.int64)
    total = NO_WORK
    for spans in place.spans:
        rows = spans[chosen]
        total += spans_time(trace, rows[rows != MISSING])
    steps = len(place.spans)
    return WorkTime(
        sum_ns=round(total.sum_ns / steps),
        exposed_ns=round(total.exposed_ns / steps),
        kernels=round(total.kernels / steps),
    )


def removed_ops(trace: Trace, ops: Iterable[int]) -> tuple[Removed, ...]:
    """Return a set of graph ops with their device work in all matched steps, for a fix that removes them."""
    chosen = np.fromiter(ops, np.int64)
    rows = np.concatenate([spans[chosen] for spans in trace.fact(graph_time).spans] or [chosen[:0]])
    return removed_inside(trace, rows[rows != MISSING]) if len(rows) else ()


def spans_time(trace: Trace, rows: npt.NDArray[np.int64]) -> WorkTime:
    """Return the device work launched inside host spans; without an accelerator, their time with a core."""
    if len(trace.rows["kernels"]):
        return work_time(trace, rows)
    total = time_with_core(trace, union_of(trace.rows["slices"], rows))
    return WorkTime(sum_ns=total, exposed_ns=total, kernels=0)


def align(names: list[str], seen: list[str]) -> list[int]:
    """Return, for each of ``names``, its position in ``seen``, in order; ``MISSING`` without one.

    The sequences are walked together. If they differ, the nearest position is taken at which the next two names agree
    (one, at the end), at most ``LOOKAHEAD`` names away on either side. The walk stops if too many are missing for the
    result to count; the rest stays ``MISSING``.
    """
    found = [MISSING] * len(names)
    spare = max(LOOKAHEAD, len(names) - ENOUGH_MATCHED * len(names))
    i = j = 0
    while i < len(names) and j < len(seen) and spare >= 0:
        if names[i] == seen[j]:
            found[i] = j
            i, j = i + 1, j + 1
            continue
        skip, jump = _resume(names, seen, i, j) or (1, 1)
        spare -= skip
        i, j = i + skip, j + jump
    return found


def _resume(names: list[str], seen: list[str], i: int, j: int) -> tuple[int, int] | None:
    """Return how far to skip on either side so that the next two names agree; the smallest sum."""
    ahead: dict[tuple[str, ...], int] = {}
    for jump in range(min(LOOKAHEAD, len(seen) - j)):
        ahead.setdefault(tuple(seen[j + jump : j + jump + 2]), jump)
    ways = [
        (skip, ahead[pair])
        for skip in range(min(LOOKAHEAD, len(names) - i))
        if (pair := tuple(names[i + skip : i + skip + 2])) in ahead
    ]
    return min(ways, key=sum, default=None)


def _outermost(trace: Trace, names: set[str]) -> npt.NDArray[np.int64]:
    """Return the rows of the ops with these names outside of other such ops, by start: the dispatched ops."""
    slices = trace.rows["slices"]
    wanted = (slices["kind"] == SliceKind.OP) & named_slices(trace, lambda name: _plain(name) in names)
    rows = outermost(trace, wanted)
    return np.asarray(rows[np.argsort(slices["start_ns"][rows], kind="stable")], np.int64)


def _steps(trace: Trace, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """Return the rows by step window; all in one window without steps."""
    windows = trace.fact(step_windows)
    starts = trace.rows["slices"]["start_ns"][rows]
    if not windows.count:
        return [rows]
    bounds = zip(np.searchsorted(starts, windows.starts), np.searchsorted(starts, windows.ends), strict=True)
    return [rows[first:last] for first, last in bounds]


def _trace_name(name: str) -> str:
    """Return the profiler's name, in place or not: ``aten::add`` for ``aten.add_``."""
    namespace, _, rest = name.partition(".")
    return _plain(f"{namespace}::{rest}")


def _plain(name: str) -> str:
    """Return the name without the mark of an in-place op, unified for ops that differ when the graph is recorded."""
    plain = name.rstrip("_")
    return SAME.get(plain, plain)
