"""What is kept of a trace of a set once it was judged by itself: what comparing reads."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.causes import ROWS_OF_EACH
from perfscope.analyzers.critical_path import Graph, NodeKind, dependency_graph
from perfscope.analyzers.engine import Examined
from perfscope.analyzers.hlo.collectives import collectives
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.memory import trace_memories
from perfscope.analyzers.programs import communication_instructions, communication_names, hot_instructions, programs
from perfscope.analyzers.ranks import (
    OWN_NAMES,
    Local,
    compute_intervals,
    device_set,
    has_ranks,
    is_process,
    launched_operations,
    link_counters,
    locals_of,
    rank_work,
)
from perfscope.analyzers.time import (
    account_windows,
    communication_in_steps,
    device_doubts,
    device_times,
    exposed_communication,
    input_slices,
    situation,
    step_accounts,
    step_windows,
    steps_work,
    work_phases,
)
from perfscope.analyzers.torch_compile import compile_summary
from perfscope.analyzers.torch_compile.phases import compile_times
from perfscope.analyzers.torch_compile.rules.compile_time import cache_use
from perfscope.model.errors import log_failure
from perfscope.model.frames import Owner, parse_frame
from perfscope.model.intervals import Int64, union
from perfscope.model.trace import MISSING, TABLES, Rows, SliceKind, Trace
from perfscope.model.trace.trace import span

# Rows of a table of which others are left out: where they are now, and what points at them.


def new_rows(size: int, chosen: Int64) -> Int64:
    """Per row of a table of ``size``: its place among the chosen ones, ``MISSING`` for the others."""
    positions = np.full(size, MISSING, np.int64)
    positions[chosen] = np.arange(len(chosen))
    return positions


def moved_references(references: np.ndarray, positions: Int64) -> np.ndarray:
    """A column of row numbers after rows were removed. ``positions``: old row -> new row."""
    moved = np.full(len(references), MISSING, np.int64)
    known = references != MISSING
    moved[known] = positions[references[known]]
    return moved


# Compiled programs and the recordings of their runs, cut down to what comparing and the sections read.
#
# A recording of one process is compared with no other by its rows: its section of programs and its devices side by side
# are derived before the rows and the instructions go. Its communication kernels stay, because exposed communication
# outside of a job is told beside the job's.
#
# A process whose collectives reach devices of other processes is kept whole: the runs of all of them are put together
# by their instructions.

_log = logging.getLogger(__name__)

_DERIVED: tuple[Callable[[Trace], Any], ...] = (programs, hot_instructions, device_set)


class ReducedPrograms(Struct, frozen=True, kw_only=True):
    """What is kept of a trace beside what is kept of any."""

    hlo: tuple[HloModule, ...] = ()
    rows: Mapping[str, Rows] = field(default_factory=dict)
    facts: Mapping[Any, Any] = field(default_factory=dict)
    whole: bool = False
    """All rows are kept."""


def reduce_programs(trace: Trace) -> ReducedPrograms:
    """What comparing reads of a trace's programs and their runs; nothing where there are none."""
    ran = len(trace.rows["hlo_ops"])
    if not trace.hlo and not ran:
        return ReducedPrograms()
    if is_process(trace):
        return ReducedPrograms(
            hlo=trace.hlo, whole=True, facts={item: trace.fact(item) for item in (programs, hot_instructions)}
        )
    facts: dict[Any, Any] = {derive: trace.fact(derive) for derive in _DERIVED}
    facts[collectives] = ()
    rows: dict[str, Rows] = {}
    if ran:
        kept, chosen, names, instructions = _communication(trace)
        rows = {**kept, "hlo_ops": _one_run(trace)}
        facts |= {derive: trace.fact(derive)[chosen] for derive in (exposed_communication, communication_in_steps)}
        facts |= {communication_names: names, communication_instructions: instructions}
    return ReducedPrograms(hlo=tuple(map(_without_instructions, trace.hlo)), rows=rows, facts=facts)


def _without_instructions(module: HloModule) -> HloModule:
    """What names a program and its file: no instruction is left in it."""
    return dataclasses.replace(
        module, computations={}, buffer_assignment=None, aliases=(), donors=(), fusion_refusals={}, thunks=None
    )


def _one_run(trace: Trace) -> Rows:
    """The first run of an instruction: it tells a recording of programs from others."""
    first = trace.rows["hlo_ops"].take(np.zeros(1, np.int64))
    return first.with_columns({"kernel": MISSING, "copy": MISSING, "slice": MISSING})


def _communication(trace: Trace) -> tuple[dict[str, Rows], np.ndarray, dict[int, str], dict[int, Any]]:
    """Communication kernels and what is known of them: rows, which they are, instructions' names, instructions."""
    kernels, table = trace.rows["kernels"], trace.rows["collectives"]
    chosen = np.flatnonzero(kernels["communication"])
    positions = new_rows(len(kernels), chosen)
    of_kernel = np.flatnonzero(table["kernel"] != MISSING)
    linked = table.take(of_kernel[positions[table["kernel"][of_kernel]] != MISSING])
    rows = {
        "kernels": kernels.take(chosen).with_columns({"call": MISSING, "op": MISSING}),
        "collectives": linked.with_columns({"kernel": moved_references(linked["kernel"], positions), "slice": MISSING}),
    }
    names = {int(positions[row]): name for row, name in trace.fact(communication_names).items()}
    instructions = {
        int(positions[row]): instruction for row, instruction in trace.fact(communication_instructions).items()
    }
    return rows, chosen, names, instructions


# A trace without the rows that only its own rules read: what is left is what comparing ranks reads.
#
# Kept are devices, threads, steps, collectives, their kernels and the calls that launched them, data loaders, the
# user's longest Python functions, and per thread when it ran ops at all. Facts that need all rows (device time,
# step windows, memories, when a device computed, counters of links, the collectives of a comparison) are computed
# before the rows are removed. So a comparison of slim traces has the same result as one of whole traces.


MOST_FRAMES = 20_000
"""Python functions of the user's that are kept, the longest: a rank that keeps others waiting is in a long one."""

_SLIM_DERIVED: tuple[Callable[[Trace], Any], ...] = (
    span, device_times, step_windows, device_doubts, steps_work, account_windows, step_accounts, trace_memories,
)  # fmt: skip
_OF_COLLECTIVES: tuple[Callable[[Trace], Any], ...] = (compute_intervals, link_counters, rank_work, situation)
_OF_COMPILING: tuple[Callable[[Trace], Any], ...] = (compile_times, cache_use)

MOST_NODES = 300_000
"""Of one rank."""


def reduce_trace(trace: Trace, *, graph: bool = True) -> Trace:
    """The trace with the rows and facts that comparing reads; itself where a fact breaks, for comparing to say so.

    ``graph``: with what waited for what on a rank, for savings of what is found by comparing.

    The log of torch.compile, the flight recorder and plans are kept whole; compiled programs and what they ran as
    ``reduce_programs`` says.
    """
    try:
        return _reduced(trace, graph=graph)
    except Exception as error:
        log_failure(_log, f"{trace.source.path} is kept whole", error)
        return trace


def _reduced(trace: Trace, *, graph: bool) -> Trace:
    if trace.torch_plans:
        return trace
    derived = [*_SLIM_DERIVED, compile_summary]
    ranked = has_ranks(trace)
    if ranked:
        derived += _OF_COLLECTIVES
    if trace.compile_log is not None:
        derived += _OF_COMPILING
    facts: dict[Any, Any] = {derive: trace.fact(derive) for derive in derived}
    facts[dependency_graph] = None
    rows = {name: trace.rows[name] for name in ("devices", "threads", "steps")}
    strings: Sequence[str] = trace.strings
    if ranked:
        strings = [*strings, "ops"]
        cut, facts[locals_of], chosen = _reduce_tables(trace)
        facts |= {derive: trace.fact(derive)[chosen] for derive in (exposed_communication, communication_in_steps)}
        kernel_at = new_rows(len(trace.rows["kernels"]), chosen)
        asked = trace.fact(launched_operations)
        facts[launched_operations] = {int(kernel_at[row]): asked[row] for row in asked if kernel_at[row] != MISSING}
        facts[work_phases] = {"kernels": trace.fact(work_phases)["kernels"][chosen]}
        facts[dependency_graph] = _reduced_graph(trace, chosen) if graph else None
        rows |= cut
    xla = reduce_programs(trace)
    facts |= xla.facts
    source, pool = (trace.rows, trace.strings) if xla.whole else _own_strings({**rows, **xla.rows}, strings)
    kept = Trace(
        source=trace.source,
        strings=pool,
        rows=source,
        recorded=trace.recorded,
        step_times_ns=trace.step_times_ns,
        window_ns=trace.window_ns,
        window_steps=trace.window_steps,
        hlo=xla.hlo,
        compile_log=trace.compile_log,
        flight_record=trace.flight_record,
        documents=trace.documents,
        judged_device=trace.judged_device,
        target=trace.target,
        topology=trace.topology,
    )
    for derive, value in facts.items():
        kept.seed(derive, value)
    return kept


def _reduced_graph(trace: Trace, kernels: Int64) -> Graph | None:
    """What waited for what, with the rows of the kernels that are kept; ``None`` where it is too large."""
    graph = trace.fact(dependency_graph)
    if graph is None or len(graph) > MOST_NODES:
        return None
    row, collective = np.full(len(graph), MISSING), graph.kind == NodeKind.COMMUNICATION
    row[collective] = new_rows(len(trace.rows["kernels"]), kernels)[graph.row[collective]]
    columns = {name: getattr(graph, name) for name in ("before", "sequence", "position", "binds")}
    columns |= {"row": row, "call": np.full(len(graph), MISSING), "thread": np.full(len(graph), MISSING)}
    return replace(graph, **{name: column.astype(np.int32) for name, column in columns.items()})


def _reduce_tables(trace: Trace) -> tuple[dict[str, Rows], tuple[Local, ...], Int64]:
    """Tables of a rank with collectives, its collectives with their rows moved, the kernels that are kept."""
    kernels, calls, collectives = (trace.rows[name] for name in ("kernels", "calls", "collectives"))
    results = trace.fact(locals_of)
    chosen = np.unique([item.kernel for item in results if item.kernel != MISSING]).astype(np.int64)
    kernel_at = new_rows(len(kernels), chosen)
    launched = kernels["call"][chosen]
    call_rows = np.unique(launched[launched != MISSING])
    slices, slice_at = _slices(trace, results)
    moved: dict[str, dict[str, Any]] = {
        "kernels": {"call": moved_references(launched, new_rows(len(calls), call_rows)), "op": MISSING},
        "calls": {"parent": MISSING},
        "collectives": {
            "kernel": moved_references(collectives["kernel"], kernel_at),
            "slice": moved_references(collectives["slice"], slice_at),
            "group": MISSING,
            "ranks": MISSING,
            "dtype": MISSING,
        },
    }
    taken = {"kernels": kernels.take(chosen), "calls": calls.take(call_rows), "collectives": collectives}
    members: dict[tuple[int, ...] | None, tuple[int, ...] | None] = {}
    local = tuple(
        replace(
            item,
            kernel=item.kernel if item.kernel == MISSING else int(kernel_at[item.kernel]),
            slice=item.slice if item.slice == MISSING else int(slice_at[item.slice]),
            ranks=members.setdefault(item.ranks, item.ranks),
        )
        for item in results
    )
    rows = {name: taken[name].with_columns(columns) for name, columns in moved.items()}
    return {**rows, "slices": slices}, local, chosen


def _slices(trace: Trace, tasks: tuple[Local, ...]) -> tuple[Rows, Int64]:
    """The spans that are kept and, per row of ``slices``, where it is now; ops of a thread become when it ran any."""
    rows = trace.rows["slices"]
    collectives = trace.rows["collectives"]["slice"]
    named = np.array([item.slice for item in tasks if item.slice != MISSING], np.int64)
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
    for name in ("sequence", "forward_thread"):
        columns[name] = np.concatenate((rows[name][kept], blank))
    positions = np.full(len(rows), MISSING, np.int64)
    turned = np.argsort(order)
    positions[kept] = turned[: len(kept)]
    return Rows(TABLES["slices"], {name: values[order] for name, values in columns.items()}), positions


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


def _own_strings(rows: dict[str, Rows], strings: Sequence[str]) -> tuple[Mapping[str, Rows], Sequence[str]]:
    """The rows with codes into a pool that holds nothing but their texts, and the pool."""
    texts = [rows[name][column.name] for name in rows for column in rows[name].table.columns if column.text]
    used = np.unique(np.concatenate(texts)).astype(np.int64)
    used = used[used != MISSING]
    positions = new_rows(len(strings), used)
    tables = {
        name: table.with_columns(
            {
                column.name: moved_references(table[column.name], positions)
                for column in table.table.columns
                if column.text
            }
        )
        for name, table in rows.items()
    }
    return tables, [strings[code] for code in used.tolist()]


def trim_evidence(item: Examined) -> Examined:
    """Without the evidence that is not shown of a rank among others."""
    outcomes = (
        replace(
            outcome,
            findings=tuple(replace(finding, evidence=finding.evidence[:ROWS_OF_EACH]) for finding in outcome.findings),
        )
        if outcome.findings
        else outcome
        for outcome in item.outcomes
    )
    return replace(item, outcomes=tuple(outcomes))
