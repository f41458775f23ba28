"""The part of an analyzed trace that is kept for comparisons with the other traces of a set."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.causes import ROWS_OF_EACH
from perfscope.analyzers.critical_path import NO_LANE, Graph, NodeKind, critical_path, dependency_graph
from perfscope.analyzers.engine import Examined
from perfscope.analyzers.hlo import HloModule, collectives
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
    received_on_host,
)
from perfscope.analyzers.spans import input_slices
from perfscope.analyzers.time import (
    account_windows,
    communication_in_steps,
    device_doubts,
    device_times,
    exposed_communication,
    situation,
    step_accounts,
    step_windows,
    steps_work,
    work_phases,
)
from perfscope.analyzers.torch_compile import cache_use, compile_summary, compile_times
from perfscope.model.errors import log_failure
from perfscope.model.frames import Owner, parse_frame
from perfscope.model.intervals import Int64, union
from perfscope.model.trace import MISSING, TABLES, Rows, SliceKind, Trace
from perfscope.model.trace.trace import span

_log = logging.getLogger(__name__)

_DERIVED: tuple[Callable[[Trace], Any], ...] = (programs, hot_instructions, device_set)

MOST_FRAMES = 20_000
"""Number of the user's Python functions that are kept, longest first: a rank that keeps others waiting is in a long
function.
"""

_SLIM_DERIVED: tuple[Callable[[Trace], Any], ...] = (
    span, device_times, step_windows, device_doubts, steps_work, account_windows, step_accounts, trace_memories,
)  # fmt: skip

_OF_COLLECTIVES: tuple[Callable[[Trace], Any], ...] = (
    compute_intervals, link_counters, rank_work, received_on_host, situation,
)  # fmt: skip

_OF_COMPILING: tuple[Callable[[Trace], Any], ...] = (compile_times, cache_use)

MOST_NODES = 300_000
"""Maximum number of graph nodes of one rank."""


def new_rows(size: int, chosen: Int64) -> Int64:
    """Return the new index of each row of a table after selection; ``MISSING`` for removed rows."""
    positions = np.full(size, MISSING, np.int64)
    positions[chosen] = np.arange(len(chosen))
    return positions


def moved_references(references: np.ndarray, positions: Int64) -> np.ndarray:
    """Return the references of a column translated to the new row numbers (``positions``, see ``new_rows``)."""
    moved = np.full(len(references), MISSING, np.int64)
    known = references != MISSING
    moved[known] = positions[references[known]]
    return moved


# Compiled programs and the recordings of their runs, reduced to the parts that comparisons and report sections read.
# A recording of one process is not compared with others by its rows: its section of programs and its devices are
# derived before the rows and instructions are removed. Its communication kernels are kept, because exposed
# communication outside of a job is shown next to the job's.
# A process whose collectives reach devices of other processes is kept whole, because the runs of all processes are
# matched by their instructions.


class ReducedPrograms(Struct, frozen=True, kw_only=True):
    """Program data that is kept of a trace, in addition to the data kept of every trace."""

    hlo: tuple[HloModule, ...] = ()
    rows: Mapping[str, Rows] = field(default_factory=dict)
    facts: Mapping[Any, Any] = field(default_factory=dict)
    whole: bool = False
    """Whether all rows are kept."""


def reduce_programs(trace: Trace) -> ReducedPrograms:
    """Return the data that comparisons read about a trace's programs and their runs; empty without programs."""
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
    """Return the module with its name and file but without instructions."""
    return msgspec.structs.replace(
        module, computations={}, buffer_assignment=None, aliases=(), donors=(), fusion_refusals={}, thunks=None
    )


def _one_run(trace: Trace) -> Rows:
    """Return the first run of an instruction, which marks the trace as a recording of programs."""
    first = trace.rows["hlo_ops"].take(np.zeros(1, np.int64))
    return first.with_columns({"kernel": MISSING, "copy": MISSING, "slice": MISSING})


def _communication(trace: Trace) -> tuple[dict[str, Rows], np.ndarray, dict[int, str], dict[int, Any]]:
    """Return the communication kernels: rows, mask, names of instructions, instructions."""
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


# A trace without the rows that only its own rules read: comparisons of ranks read the rest.
# Kept are devices, threads, steps, collectives, their kernels and launch calls, data loaders, the user's longest Python
# functions, and per thread the time in which it ran any op. Values derived from all rows (device time, step windows,
# memories, compute intervals, counters of links, collectives in the form that comparisons read) are computed before the
# rows are removed and stay as facts. Comparisons of reduced traces therefore equal those of whole traces.


def reduce_trace(trace: Trace, *, graph: bool = True) -> Trace:
    """Return the trace reduced to the rows and facts that comparisons read.

    Unchanged if a fact fails, so that the comparison reports the error.

    ``graph``: keep the dependency graph of a rank, for savings of findings that compare ranks.

    torch.compile's log, the flight recorder and plans are kept whole; compiled programs and their runs as in
    ``reduce_programs``.
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
    facts[dependency_graph] = facts[critical_path] = None  # the path consists of spans, which are not kept
    rows = {name: trace.rows[name] for name in ("devices", "threads", "steps")}
    strings: Sequence[str] = trace.strings
    if ranked:
        strings = [*strings, "ops"]
        cut, facts[locals_of], chosen = _reduce_tables(trace)
        facts |= {derive: trace.fact(derive)[chosen] for derive in (exposed_communication, communication_in_steps)}
        kernel_at = new_rows(len(trace.rows["kernels"]), chosen)
        operations = trace.fact(launched_operations)
        facts[launched_operations] = {
            int(kernel_at[row]): operations[row] for row in operations if kernel_at[row] != MISSING
        }
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
    """Return the dependency graph without its spans, with the new rows of kernels; ``None`` if it is too large."""
    graph = trace.fact(dependency_graph)
    if graph is None or len(graph) > MOST_NODES:
        return None
    row, collective = np.full(len(graph), MISSING), graph.kind == NodeKind.COMMUNICATION
    row[collective] = new_rows(len(trace.rows["kernels"]), kernels)[graph.row[collective]]
    columns = {"before": graph.before, "binds": graph.binds, "row": row}
    columns |= {"call": np.full(len(graph), MISSING), "thread": np.full(len(graph), MISSING)}
    return replace(graph, lane=NO_LANE, **{name: column.astype(np.int32) for name, column in columns.items()})


def _reduce_tables(trace: Trace) -> tuple[dict[str, Rows], tuple[Local, ...], Int64]:
    """Return the tables of a rank with collectives, its collectives with translated rows, and the kept kernels."""
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
    """Return the kept spans, and the new index of each row of ``slices``; ops of a thread become its busy intervals."""
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
    """Return the rows of the user's longest Python functions."""
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
    """Return the rows with codes into a pool that contains only their own texts, and that pool."""
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
    """Remove the evidence that is not shown for one of several ranks."""
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
