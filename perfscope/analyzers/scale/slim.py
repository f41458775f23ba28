"""A trace without the rows that only its own rules read: what is left is what comparing ranks reads.

Kept are devices, threads, steps, collectives, their kernels and the calls that launched them, data loaders, the
user's longest Python functions, and per thread when it ran ops at all. What is derived from all rows (device time, step
windows, its memories, when a device computed, counters of links, the collectives as comparing reads them) is derived
before the rows go and stays as a fact. So a comparison says of slim traces what it says of whole ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from perfscope.analyzers.facts.compile_cost import cache_use
from perfscope.analyzers.facts.compile_phases import compile_times
from perfscope.analyzers.facts.compile_summary import compile_summary
from perfscope.analyzers.facts.device_time import device_times
from perfscope.analyzers.facts.exposure import exposed_communication
from perfscope.analyzers.facts.frames import Owner, parse_frame
from perfscope.analyzers.facts.host_spans import input_slices
from perfscope.analyzers.facts.intervals import Int64, union
from perfscope.analyzers.facts.link_counters import link_counters
from perfscope.analyzers.facts.step_windows import step_windows
from perfscope.analyzers.facts.step_work import steps_work
from perfscope.analyzers.facts.trace_memories import trace_memories
from perfscope.analyzers.ranks.before import OWN_NAMES, compute_intervals
from perfscope.analyzers.ranks.job import has_ranks
from perfscope.analyzers.ranks.local import Local, locals_of
from perfscope.analyzers.scale.cut_rows import moved_to, places, with_columns
from perfscope.analyzers.scale.slim_xla import xla_cut
from perfscope.analyzers.trace import MISSING, TABLES, Rows, SliceKind, Trace
from perfscope.analyzers.trace.trace import span

MOST_FRAMES = 20_000
"""Python functions of the user's that are kept, the longest: a rank that keeps others waiting is in a long one."""

_DERIVED: tuple[Callable[[Trace], Any], ...] = (span, device_times, step_windows, steps_work, trace_memories)
_OF_COLLECTIVES: tuple[Callable[[Trace], Any], ...] = (compute_intervals, link_counters)
_OF_COMPILING: tuple[Callable[[Trace], Any], ...] = (compile_times, cache_use)


def slim(trace: Trace) -> Trace:
    """The trace with the rows and facts that comparing reads. ``trace`` itself stays as it is.

    The log of torch.compile and the flight recorder are kept whole; compiled programs and what they ran as
    ``xla_cut`` says. A fact that cannot be derived raises what it raises.
    """
    derived = [*_DERIVED, compile_summary]
    ranked = has_ranks(trace)
    if ranked:
        derived += _OF_COLLECTIVES
    if trace.compile_log is not None:
        derived += _OF_COMPILING
    facts: dict[Any, Any] = {derive: trace.fact(derive) for derive in derived}
    rows = {name: trace.rows[name] for name in ("devices", "threads", "steps")}
    strings = trace.strings
    if ranked:
        strings = [*strings, "ops"]
        cut, facts[locals_of], facts[exposed_communication] = _cut(trace)
        rows |= cut
    xla = xla_cut(trace)
    facts |= xla.facts
    held, pool = (trace.rows, trace.strings) if xla.whole else _own_strings({**rows, **xla.rows}, strings)
    kept = Trace(
        source=trace.source,
        strings=pool,
        rows=held,
        recorded=trace.recorded,
        step_times_ns=trace.step_times_ns,
        window_ns=trace.window_ns,
        window_steps=trace.window_steps,
        hlo=xla.hlo,
        compile_log=trace.compile_log,
        flight_record=trace.flight_record,
    )
    kept.judged_device, kept.target = trace.judged_device, trace.target
    for derive, value in facts.items():
        kept.seed(derive, value)
    return kept


def _cut(trace: Trace) -> tuple[dict[str, Rows], tuple[Local, ...], Int64]:
    """Tables of a rank with collectives, its collectives with their rows moved, exposure by kernel that is kept."""
    kernels, calls, collectives = (trace.rows[name] for name in ("kernels", "calls", "collectives"))
    found = trace.fact(locals_of)
    chosen = np.unique([one.kernel for one in found if one.kernel != MISSING]).astype(np.int64)
    kernel_at = places(len(kernels), chosen)
    launched = kernels["call"][chosen]
    call_rows = np.unique(launched[launched != MISSING])
    slices, slice_at = _slices(trace, found)
    moved: dict[str, dict[str, Any]] = {
        "kernels": {"call": moved_to(launched, places(len(calls), call_rows)), "op": MISSING},
        "calls": {"parent": MISSING},
        "collectives": {
            "kernel": moved_to(collectives["kernel"], kernel_at),
            "slice": moved_to(collectives["slice"], slice_at),
            "group": MISSING,
            "ranks": MISSING,
            "dtype": MISSING,
        },
    }
    taken = {"kernels": kernels.take(chosen), "calls": calls.take(call_rows), "collectives": collectives}
    members: dict[tuple[int, ...] | None, tuple[int, ...] | None] = {}
    local = tuple(
        replace(
            one,
            kernel=one.kernel if one.kernel == MISSING else int(kernel_at[one.kernel]),
            slice=one.slice if one.slice == MISSING else int(slice_at[one.slice]),
            ranks=members.setdefault(one.ranks, one.ranks),
        )
        for one in found
    )
    rows = {name: with_columns(taken[name], columns) for name, columns in moved.items()}
    return {**rows, "slices": slices}, local, trace.fact(exposed_communication)[chosen]


def _slices(trace: Trace, found: tuple[Local, ...]) -> tuple[Rows, Int64]:
    """The spans that are kept and, per row of ``slices``, where it is now; ops of a thread become when it ran any."""
    rows = trace.rows["slices"]
    collectives = trace.rows["collectives"]["slice"]
    named = np.array([one.slice for one in found if one.slice != MISSING], np.int64)
    kept = np.unique(
        np.concatenate((named, collectives[collectives != MISSING], input_slices(trace), _frames(trace)))
    ).astype(np.int64)
    own = [code for code, text in enumerate(trace.strings) if text.startswith(OWN_NAMES)]
    ops = (rows["kind"] == int(SliceKind.OP)) & ~np.isin(rows["name"], own)
    busy: list[tuple[int, int, int]] = []
    for thread in np.unique(rows["thread"][ops]).tolist():
        here = ops & (rows["thread"] == thread)
        spans = union(rows["start_ns"][here], rows["end_ns"][here])
        busy += [(thread, start, end) for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)]
    added = np.array(busy, np.int64).reshape(-1, 3)
    thread = np.concatenate((rows["thread"][kept], added[:, 0]))
    start = np.concatenate((rows["start_ns"][kept], added[:, 1]))
    end = np.concatenate((rows["end_ns"][kept], added[:, 2]))
    order = np.lexsort((-end, start, thread))
    blank = np.full(len(added), MISSING)
    columns: dict[str, Any] = {
        "start_ns": start,
        "end_ns": end,
        "thread": thread,
        "name": np.concatenate((rows["name"][kept], np.full(len(added), len(trace.strings)))),
        "kind": np.concatenate((rows["kind"][kept], np.full(len(added), int(SliceKind.OP)))),
    }
    for name in ("external_id", "sequence", "forward_thread"):
        columns[name] = np.concatenate((rows[name][kept], blank))
    at = np.full(len(rows), MISSING, np.int64)
    turned = np.argsort(order)
    at[kept] = turned[: len(kept)]
    return Rows(TABLES["slices"], {name: values[order] for name, values in columns.items()}), at


def _frames(trace: Trace) -> Int64:
    """Rows of the longest Python functions of the user's."""
    rows = trace.rows["slices"]
    python = np.flatnonzero(rows["kind"] == int(SliceKind.PYTHON))
    names, inverse = np.unique(rows["name"][python], return_inverse=True)
    frames = [parse_frame(trace.text(int(code))) for code in names]
    mine = np.array([frame is not None and frame.owner is Owner.USER for frame in frames], bool)
    chosen = python[mine[inverse]] if len(python) else python
    if len(chosen) > MOST_FRAMES:
        lasting = rows["end_ns"][chosen] - rows["start_ns"][chosen]
        chosen = chosen[np.argsort(-lasting, kind="stable")[:MOST_FRAMES]]
    return chosen


def _own_strings(rows: dict[str, Rows], strings: list[str]) -> tuple[dict[str, Rows], list[str]]:
    """The rows with codes into a pool that holds nothing but their texts, and the pool."""
    texts = [rows[name][column.name] for name in rows for column in rows[name].table.columns if column.text]
    used = np.unique(np.concatenate(texts)).astype(np.int64)
    used = used[used != MISSING]
    at = places(len(strings), used)
    held = {
        name: with_columns(
            table, {column.name: moved_to(table[column.name], at) for column in table.table.columns if column.text}
        )
        for name, table in rows.items()
    }
    return held, [strings[code] for code in used.tolist()]
