"""Tables for queries: declared tables, and analyses as tables. Each is made when a query names it.

Every table begins with ``source`` (number of the trace, from 0) and ``rank``; a declared table continues with ``row``,
the number that columns of other tables refer to (``kernels.op`` is a ``row`` of ``slices``). Kinds are words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from perfscope.analyzers.critical_path import NodeKind, critical_path
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.ops import (
    PRECISIONS,
    counted_calls,
    matmul_precision,
    op_class,
    short_kernel_name,
    uses_tensor_cores,
)
from perfscope.analyzers.query import messages, spans
from perfscope.analyzers.ranks import rank_sets
from perfscope.analyzers.results import labelled_rows, labels_of, result_table
from perfscope.analyzers.time import call_site, step_accounts
from perfscope.model.results import Column, ResultTable
from perfscope.model.trace import MISSING, TABLES, CallKind, CopyKind, HostMemory, SliceKind, Trace
from perfscope.model.trace.tables import HeldState, MemoryAction, MemoryCategory

if TYPE_CHECKING:
    import pandas as pd


_KINDS = {
    kind.__name__: kind for kind in (CallKind, CopyKind, HeldState, HostMemory, MemoryAction, MemoryCategory, SliceKind)
}
"""Units of columns that hold a kind."""


def frame_of(name: str, traces: Sequence[Trace]) -> pd.DataFrame:
    """Return a table by name; ``KeyError`` if it does not exist."""
    import pandas as pd

    if name not in TABLES:
        return _with_missing(_result_frame(table_of(name), traces))
    declared = TABLES[name]
    frames = []
    for source, trace in enumerate(traces):
        frame = trace.frame(declared.name)
        if "rank" not in frame.columns:
            frame.insert(0, "rank", None)
        frame.insert(0, "source", source)
        frame.insert(2, "row", np.arange(len(frame)))
        texts = [column.name for column in declared.columns if column.text]
        for column in declared.columns:
            if column.unit in _KINDS:
                frame[column.name] = frame[column.name].map(
                    {int(kind): kind.name.lower() for kind in _KINDS[column.unit]}
                )
        frames.append(frame.astype(dict.fromkeys(texts, "object")))
    return pd.concat(frames, ignore_index=True)


def table_of(name: str) -> ResultTable[Any]:
    """The table that is derived for a query of that name; ``KeyError`` without one."""
    return DERIVED.get(name) or result_table(name)


def _result_frame(table: ResultTable[Any], traces: Sequence[Trace]) -> pd.DataFrame:
    import pandas as pd

    names = [*(label for label, *_ in labels_of(table)), *(column.name for column in table.columns)]
    return pd.DataFrame([tuple(row.values()) for row in labelled_rows(table, traces)], columns=names, dtype=object)


def _with_missing(frame: pd.DataFrame) -> pd.DataFrame:
    """Convert columns by their content; whole numbers stay whole numbers if some are missing."""
    import pandas as pd

    kinds = {name: pd.api.types.infer_dtype(frame[name], skipna=True) for name in frame.columns}
    whole = [name for name, kind in kinds.items() if kind == "integer" and frame[name].isna().any()]
    return frame.astype(dict.fromkeys(whole, "Int64")).infer_objects()


def _accounts(traces: Sequence[Trace]) -> list[tuple[Any, ...]]:
    rows = []
    for source, trace in enumerate(traces):
        for account in trace.fact(step_accounts):
            for cause, values in account.causes_ns.items():
                numbers: Sequence[int | None] = account.numbers or (None,)
                for number, value in zip(numbers, values, strict=True):
                    device = None if account.ordinal == MISSING else account.ordinal
                    rows.append((source, account.rank, device, account.name, number, cause, value))
    return rows


def _path(traces: Sequence[Trace]) -> list[tuple[Any, ...]]:
    rows = []
    for source, trace in enumerate(traces):
        path = trace.fact(critical_path)
        if path is None:
            continue
        graph, numbers = path.graph, path.graph.windows.numbers
        starts, ends, part, rows_of_parts = path.pieces()
        on_host = graph.on_host
        for start, end, window, node, gap, row in zip(
            starts.tolist(),
            ends.tolist(),
            path.window[part].tolist(),
            path.node[part].tolist(),
            path.gap[part].tolist(),
            rows_of_parts.tolist(),
            strict=True,
        ):
            kind = NodeKind(int(graph.kind[node]))
            table = "slices" if on_host[node] else "copies" if kind == NodeKind.COPY else "kernels"
            name = None if row == MISSING else trace.text(int(trace.rows[table]["name"][row]))
            step = numbers[window] if numbers else None
            what = kind.name.lower() if gap == MISSING else f"before {kind.name.lower()}"
            rows.append(
                (source, trace.source.rank, step, start, end, end - start, what, name, None if row == MISSING else row)
            )
    return rows


def _findings(traces: Sequence[Trace]) -> list[tuple[Any, ...]]:
    return [
        (
            rule,
            finding.title,
            finding.severity,
            finding.basis,
            finding.cost_ns,
            finding.cost_ns_per_step,
            finding.cost_bytes,
            finding.where.file,
            finding.where.line,
            finding.where.op,
            finding.where.module,
        )
        for rule, finding in analyze(list(traces)).findings()
    ]


def _launches(traces: Sequence[Trace]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for source, trace in enumerate(traces):
        calls, slices = trace.rows["calls"], trace.rows["slices"]
        for table in ("kernels", "copies"):
            work = trace.rows[table]
            for row in np.flatnonzero(work["call"] != MISSING).tolist():
                call, op = int(work["call"][row]), int(work["op"][row])
                rows.append(
                    (
                        source,
                        trace.source.rank,
                        table,
                        row,
                        trace.text(int(work["name"][row])),
                        None if op == MISSING else trace.text(int(slices["name"][op])),
                        int(work["device"][row]),
                        int(work["stream"][row]),
                        int(calls["start_ns"][call]),
                        int(calls["end_ns"][call] - calls["start_ns"][call]),
                        int(work["start_ns"][row] - calls["start_ns"][call]),
                        int(work["end_ns"][row] - work["start_ns"][row]),
                    )
                )
    return rows


def _ops(traces: Sequence[Trace]) -> list[tuple[Any, ...]]:
    """Ops that launched device work, with their source place."""
    rows: list[tuple[Any, ...]] = []
    for source, trace in enumerate(traces):
        slices = trace.rows["slices"]
        time: dict[int, list[int]] = {}
        for table in ("kernels", "copies"):
            work = trace.rows[table]
            for op, length in zip(work["op"].tolist(), (work["end_ns"] - work["start_ns"]).tolist(), strict=True):
                if op != MISSING:
                    entry = time.setdefault(op, [0, 0])
                    entry[0] += length
                    entry[1] += 1
        for op, (length, count) in sorted(time.items()):
            site, name = call_site(trace, op), trace.text(int(slices["name"][op]))
            rows.append(
                (
                    source,
                    trace.source.rank,
                    op,
                    name,
                    op_class(name),
                    int(slices["start_ns"][op]),
                    int(slices["end_ns"][op] - slices["start_ns"][op]),
                    length,
                    count,
                    trace.text(int(slices["shapes"][op])) or None,
                    site.module,
                    site.file,
                    site.line,
                )
            )
    return rows


def _counted(traces: Sequence[Trace]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for source, trace in enumerate(traces):
        shapes = trace.rows["slices"]["shapes"]
        for call in trace.fact(counted_calls):
            site, known = call_site(trace, call.op), call.op != MISSING
            rows.append(
                (
                    source,
                    trace.source.rank,
                    call.op if known else None,
                    call.name,
                    len(call.kernels),
                    list(call.kernels),
                    *map(call.flops.get, PRECISIONS),
                    call.total_flops,
                    call.modelled_flops,
                    call.dram_bytes,
                    call.modelled_bytes,
                    call.tensor_cores,
                    (trace.text(int(shapes[call.op])) or None) if known else None,
                    site.module,
                    site.file,
                    site.line,
                    call.basis,
                )
            )
    return rows


def _kernel_names(traces: Sequence[Trace]) -> list[tuple[Any, ...]]:
    codes = {trace.text(int(code)) for trace in traces for code in np.unique(trace.rows["kernels"]["name"])}
    return [(name, short_kernel_name(name), matmul_precision(name), uses_tensor_cores(name)) for name in sorted(codes)]


def _matched(traces: Sequence[Trace]) -> list[tuple[Any, ...]]:
    rows = []
    for job, ranks in enumerate(rank_sets(traces)):
        for collective in ranks.matching.matched:
            for rank, side in sorted(collective.sides.items()):
                rows.append(
                    (
                        job,
                        collective.operation,
                        list(collective.group),
                        collective.index,
                        rank,
                        side.start_ns - ranks.clocks.offset_ns.get(rank, 0),
                        side.duration_ns,
                        collective.core_ns,
                        collective.wait_ns(rank),
                        collective.last,
                        collective.message_bytes,
                    )
                )
    return rows


DERIVED: dict[str, ResultTable[Any]] = {
    "accounts": ResultTable(
        name="accounts",
        doc="Where each step went, by device and cause: one row per cause. The causes of a step sum to it exactly.",
        columns=(
            Column("source", int | None, "count", "number of the trace"),
            Column("rank", int | None, "count", "rank, where known"),
            Column("device", int | None, "count", "number of the device; missing: the host"),
            Column("name", str | None, "code", "its name"),
            Column("step", int | None, "count", "number of the step; missing: the whole capture"),
            Column(
                "cause", str | None, "text", "compute, exposed_communication, exposed_copy, or the cause of idle time"
            ),
            Column("time_ns", int | None, "ns", "time"),
        ),
        rows=_accounts,
        scope="all",
    ),
    "collective_sides": ResultTable(
        name="collective_sides",
        doc="Collectives that several ranks show, matched: one row per rank. Times are on the lowest rank's clock.",
        columns=(
            Column("job", int | None, "count", "number of the job"),
            Column("operation", str | None, "text", "such as all_reduce"),
            Column("members", tuple[int, ...], "text", "ranks of the group"),
            Column("number", int | None, "count", "number in its group"),
            Column("rank", int | None, "count", "rank"),
            Column("start_ns", int | None, "ns", "begin"),
            Column("duration_ns", int | None, "ns", "duration"),
            Column("core_ns", int | None, "ns", "the shortest duration of a rank: the transfer"),
            Column("wait_ns", int | None, "ns", "what the rank waited for the last one"),
            Column("last_rank", int | None, "count", "the rank that came last"),
            Column("message_bytes", int | None, "bytes", "message of one rank, where known"),
        ),
        rows=_matched,
        scope="all",
    ),
    "counted_ops": ResultTable(
        name="counted_ops",
        doc="Ops by the hardware counters of their kernels: one row per call of an op, and per range that is "
        "of none. FLOPs are the instructions executed (add + mul + 2 fma), without those of tensor cores.",
        columns=(
            Column("source", int | None, "count", "number of the trace"),
            Column("rank", int | None, "count", "rank, where known"),
            Column("row", int | None, "count", "row of slices; missing: the range is of no op"),
            Column("name", str | None, "code", "of the op, else of the range"),
            Column("kernels", int | None, "count", "ranges of it"),
            Column("kernel_names", tuple[str, ...], "code", "their names, as recorded"),
            Column("float64_flops", float | None, "quantity", "measured"),
            Column("float32_flops", float | None, "quantity", "measured"),
            Column(
                "float16_flops",
                float | None,
                "quantity",
                "measured; compilers load constants with such instructions, too",
            ),
            Column("flops", float | None, "quantity", "of the precisions that were counted"),
            Column(
                "modelled_flops", float | None, "quantity", "by the shapes, of products, convolutions and attention"
            ),
            Column("dram_bytes", float | None, "bytes", "read from and written to device memory, measured"),
            Column("modelled_bytes", float | None, "bytes", "the least that the op moves, by the shapes"),
            Column("tensor_cores", bool | None, "text", "true: counted, or by a kernel's name; false: unused; missing"),
            Column("shapes", str | None, "text", "input shapes, where recorded"),
            Column("module", str | None, "code", "module, where known"),
            Column("file", str | None, "place", "of the program, where known"),
            Column("line", int | None, "count", "in it"),
            Column("basis", str | None, "text", "how ranges and launches were joined, or why they were not"),
        ),
        rows=_counted,
        scope="all",
    ),
    "critical_path": ResultTable(
        name="critical_path",
        doc="The chain that bounds each step: one row per piece, gapless. `before kernel`: time until it could begin.",
        columns=(
            Column("source", int | None, "count", "number of the trace"),
            Column("rank", int | None, "count", "rank, where known"),
            Column("step", int | None, "count", "number of the step; missing: the whole capture"),
            Column("start_ns", int | None, "ns", "begin"),
            Column("end_ns", int | None, "ns", "end"),
            Column("duration_ns", int | None, "ns", "duration"),
            Column(
                "what",
                str | None,
                "text",
                "host, return (of a wait), kernel, communication, copy, or before one of them",
            ),
            Column("name", str | None, "code", "of the span, kernel or copy"),
            Column("row", int | None, "count", "row of slices, kernels or copies"),
        ),
        rows=_path,
        scope="all",
    ),
    "findings": ResultTable(
        name="findings",
        doc="Findings of the rules, costliest first.",
        columns=(
            Column("rule", str | None, "text", "id"),
            Column("title", str | None, "text", "one line"),
            Column("severity", str | None, "text", "low, medium, high"),
            Column("basis", str | None, "text", "measured, modelled, structural"),
            Column("cost_ns", int | None, "ns", "over the whole trace"),
            Column("cost_ns_per_step", int | None, "ns", "per step"),
            Column("cost_bytes", int | None, "bytes", "memory moved or held for nothing"),
            Column("file", str | None, "place", "of the program"),
            Column("line", int | None, "count", "in it"),
            Column("op", str | None, "code", "op"),
            Column("module", str | None, "code", "module"),
        ),
        rows=_findings,
        scope="all",
    ),
    "kernel_names": ResultTable(
        name="kernel_names",
        doc="Each kernel name with its short form and the arithmetic according to its name.",
        columns=(
            Column("name", str | None, "code", "as recorded"),
            Column("short", str | None, "code", "as reports show it"),
            Column(
                "precision",
                str | None,
                "text",
                "of the operands of a matrix product or convolution, if the name has it",
            ),
            Column(
                "tensor_cores",
                bool | None,
                "text",
                "true: the name is of a kernel for them; false: of a plain float32 product; missing",
            ),
        ),
        rows=_kernel_names,
        scope="all",
    ),
    "launches": ResultTable(
        name="launches",
        doc="Device work with the call that launched it: one row per kernel or copy.",
        columns=(
            Column("source", int | None, "count", "number of the trace"),
            Column("rank", int | None, "count", "rank, where known"),
            Column("work", str | None, "code", "kernels or copies"),
            Column("row", int | None, "count", "row of that table"),
            Column("name", str | None, "code", "of the kernel or copy"),
            Column("op", str | None, "code", "op that launched it"),
            Column("device", int | None, "count", "row of devices"),
            Column("stream", int | None, "count", "stream"),
            Column("launch_ns", int | None, "ns", "when the call began"),
            Column("call_ns", int | None, "ns", "how long the call took"),
            Column("delay_ns", int | None, "ns", "from the begin of the call to the begin of the work"),
            Column("duration_ns", int | None, "ns", "of the work"),
        ),
        rows=_launches,
        scope="all",
    ),
    "messages": ResultTable(
        name="messages",
        doc="Collectives as each rank saw them, also of one rank alone: its duration holds its waiting for "
        "other ranks, so bandwidths by it are lower bounds.",
        columns=(
            Column("source", int | None, "count", "number of the trace"),
            Column("rank", int | None, "count", "rank, where known"),
            Column("operation", str | None, "text", "such as all_reduce"),
            Column("description", str | None, "text", "the program's name of the group"),
            Column("group_size", int | None, "count", "ranks in it, where recorded"),
            Column("dtype", str | None, "text", "element type"),
            Column("algorithm", str | None, "text", "of NCCL, if in the kernel's name"),
            Column("protocol", str | None, "text", "of NCCL, if in the kernel's name"),
            Column("kernel", int | None, "count", "row of kernels; missing: on the host"),
            Column("start_ns", int | None, "ns", "begin"),
            Column("duration_ns", int | None, "ns", "with the time that this rank waited for others"),
            Column("message_bytes", int | None, "bytes", "of one rank, as nccl-tests counts it"),
            Column("bus_bytes", float | None, "bytes", "bytes times the factor of nccl-tests for the bus bandwidth"),
            Column("input_bytes", float | None, "bytes", "bytes that the rank gave, where recorded"),
            Column("output_bytes", float | None, "bytes", "bytes that the rank got, where recorded"),
        ),
        rows=messages.message_rows,
        scope="all",
    ),
    "ops": ResultTable(
        name="ops",
        doc="Ops that launched device work: one row per call, with its place in the code.",
        columns=(
            Column("source", int | None, "count", "number of the trace"),
            Column("rank", int | None, "count", "rank, where known"),
            Column("row", int | None, "count", "row of slices"),
            Column("name", str | None, "code", "of the op"),
            Column("class", str | None, "text", "class by its name: matrix product, attention, normalisation, ..."),
            Column("start_ns", int | None, "ns", "begin"),
            Column("host_ns", int | None, "ns", "time of the op on the host"),
            Column("device_ns", int | None, "ns", "summed time of the work that it launched itself"),
            Column("works", int | None, "count", "kernels and copies"),
            Column("shapes", str | None, "text", "input shapes, where recorded"),
            Column("module", str | None, "code", "module, where known"),
            Column("file", str | None, "place", "of the program, where known"),
            Column("line", int | None, "count", "in it"),
        ),
        rows=_ops,
        scope="all",
    ),
    "spans": ResultTable(
        name="spans",
        doc="Every host span with its own time and the device work launched by it and inside it. The backward"
        " pass runs outside the spans of the forward pass; `ops.module` has its module too.",
        columns=(
            Column("source", int | None, "count", "number of the trace"),
            Column("rank", int | None, "count", "rank, where known"),
            Column("row", int | None, "count", "row of slices"),
            Column("name", str | None, "code", "as recorded"),
            Column("kind", str | None, "text", "op, annotation, python, overhead, other"),
            Column("thread", int | None, "count", "row of threads"),
            Column("parent", int | None, "count", "row of the innermost span that encloses it"),
            Column("depth", int | None, "count", "spans around it"),
            Column("module_parent", int | None, "count", "row of the innermost span of a torch module around it"),
            Column("start_ns", int | None, "ns", "begin"),
            Column("host_ns", int | None, "ns", "from its begin to its end on the host"),
            Column("host_self_ns", int | None, "ns", "of these, outside the spans directly inside it"),
            Column("device_ns", int | None, "ns", "summed time of the kernels and copies that it launched itself"),
            Column("works", int | None, "count", "their number"),
            Column(
                "inner_device_ns",
                int | None,
                "ns",
                "summed time of the kernels and copies launched by it or a span inside it",
            ),
            Column("inner_works", int | None, "count", "their number"),
            Column("device_start_ns", int | None, "ns", "begin of the first of those"),
            Column("device_end_ns", int | None, "ns", "end of the last of those"),
        ),
        rows=spans.span_rows,
        scope="all",
    ),
}
"""By name; with the declared tables and the result tables of capabilities all tables for queries."""
