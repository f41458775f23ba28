"""Tables for queries: declared tables, and analyses as tables. Each is made when a query names it.

Every table begins with ``source`` (number of the trace, from 0) and ``rank``; a declared table continues with ``row``,
the number that columns of other tables refer to (``kernels.op`` is a ``row`` of ``slices``). Kinds are words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

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
from perfscope.model.results import ResultTable
from perfscope.model.trace import MISSING, TABLES, CallKind, CopyKind, HostMemory, SliceKind, Trace
from perfscope.model.trace.tables import HeldState, MemoryAction, MemoryCategory

if TYPE_CHECKING:
    import pandas as pd


_KINDS = {
    kind.__name__: kind for kind in (CallKind, CopyKind, HeldState, HostMemory, MemoryAction, MemoryCategory, SliceKind)
}
"""Units of columns that hold a kind."""

WHOSE = (("source", "number of the trace"), ("rank", "rank, where known"))


class Derived(Struct, frozen=True):
    """A table that is not declared: its description, its columns with meanings, and the function that makes rows."""

    doc: str
    columns: tuple[tuple[str, str], ...]
    rows: Callable[[Sequence[Trace]], list[tuple[Any, ...]]]


def frame_of(name: str, traces: Sequence[Trace]) -> pd.DataFrame:
    """Return a table by name; ``KeyError`` if it does not exist."""
    import pandas as pd

    if name in DERIVED:
        table = DERIVED[name]
        return _with_missing(
            pd.DataFrame(table.rows(traces), columns=[column for column, _ in table.columns], dtype=object)
        )
    if name not in TABLES:
        return _with_missing(_result_frame(result_table(name), traces))
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
        for start, end, window, node, gap in zip(
            path.starts.tolist(),
            path.ends.tolist(),
            path.window.tolist(),
            path.node.tolist(),
            path.gap.tolist(),
            strict=True,
        ):
            kind, row = NodeKind(int(graph.kind[node])), int(graph.row[node])
            table = "slices" if graph.on_host[node] else "copies" if kind == NodeKind.COPY else "kernels"
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


DERIVED: dict[str, Derived] = {
    "accounts": Derived(
        "Where each step went, by device and cause: one row per cause. The causes of a step sum to it exactly.",
        (
            *WHOSE,
            ("device", "number of the device; missing: the host"),
            ("name", "its name"),
            ("step", "number of the step; missing: the whole capture"),
            ("cause", "compute, exposed_communication, exposed_copy, or the cause of idle time"),
            ("time_ns", "ns"),
        ),
        _accounts,
    ),
    "collective_sides": Derived(
        "Collectives that several ranks show, matched: one row per rank. Times are on the lowest rank's clock.",
        (
            ("job", "number of the job"),
            ("operation", "such as all_reduce"),
            ("members", "ranks of the group"),
            ("number", "number in its group"),
            ("rank", "rank"),
            ("start_ns", "begin, ns"),
            ("duration_ns", "ns"),
            ("core_ns", "the shortest duration of a rank, ns: the transfer"),
            ("wait_ns", "what the rank waited for the last one, ns"),
            ("last_rank", "the rank that came last"),
            ("message_bytes", "B, where known"),
        ),
        _matched,
    ),
    "counted_ops": Derived(
        "Ops by the hardware counters of their kernels: one row per call of an op, and per range that is of none. "
        "FLOPs are the instructions executed (add + mul + 2 fma), without those of tensor cores.",
        (
            *WHOSE,
            ("row", "row of slices; missing: the range is of no op"),
            ("name", "of the op, else of the range"),
            ("kernels", "ranges of it"),
            ("kernel_names", "their names, as recorded"),
            ("float64_flops", "measured"),
            ("float32_flops", "measured"),
            ("float16_flops", "measured; compilers load constants with such instructions, too"),
            ("flops", "of the precisions that were counted"),
            ("modelled_flops", "by the shapes, of products, convolutions and attention"),
            ("dram_bytes", "read from and written to device memory, measured, B"),
            ("modelled_bytes", "the least that the op moves, by the shapes, B"),
            ("tensor_cores", "true: counted, or by a kernel's name; false: unused; missing"),
            ("shapes", "input shapes, where recorded"),
            ("module", "module, where known"),
            ("file", "of the program, where known"),
            ("line", "in it"),
            ("basis", "how ranges and launches were joined, or why they were not"),
        ),
        _counted,
    ),
    "critical_path": Derived(
        "The chain that bounds each step: one row per piece, gapless. `before kernel`: time until it could begin.",
        (
            *WHOSE,
            ("step", "number of the step; missing: the whole capture"),
            ("start_ns", "ns"),
            ("end_ns", "ns"),
            ("duration_ns", "ns"),
            ("what", "host, return (of a wait), kernel, communication, copy, or before one of them"),
            ("name", "of the span, kernel or copy"),
            ("row", "row of slices, kernels or copies"),
        ),
        _path,
    ),
    "findings": Derived(
        "Findings of the rules, costliest first.",
        (
            ("rule", "id"),
            ("title", "one line"),
            ("severity", "low, medium, high"),
            ("basis", "measured, modelled, structural"),
            ("cost_ns", "over the whole trace, ns"),
            ("cost_ns_per_step", "ns"),
            ("cost_bytes", "B"),
            ("file", "of the program"),
            ("line", "in it"),
            ("op", "op"),
            ("module", "module"),
        ),
        _findings,
    ),
    "kernel_names": Derived(
        "Each kernel name with its short form and the arithmetic according to its name.",
        (
            ("name", "as recorded"),
            ("short", "as reports show it"),
            ("precision", "of the operands of a matrix product or convolution, if the name has it"),
            (
                "tensor_cores",
                "true: the name is of a kernel for them; false: of a plain float32 product; missing",
            ),
        ),
        _kernel_names,
    ),
    "launches": Derived(
        "Device work with the call that launched it: one row per kernel or copy.",
        (
            *WHOSE,
            ("work", "kernels or copies"),
            ("row", "row of that table"),
            ("name", "of the kernel or copy"),
            ("op", "op that launched it"),
            ("device", "row of devices"),
            ("stream", "stream"),
            ("launch_ns", "when the call began, ns"),
            ("call_ns", "how long the call took, ns"),
            ("delay_ns", "from the begin of the call to the begin of the work, ns"),
            ("duration_ns", "of the work, ns"),
        ),
        _launches,
    ),
    "messages": Derived(
        "Collectives as each rank saw them, also of one rank alone: its duration holds its waiting for other ranks, so "
        "bandwidths by it are lower bounds.",
        (*WHOSE, *messages.MESSAGE_COLUMNS),
        messages.message_rows,
    ),
    "ops": Derived(
        "Ops that launched device work: one row per call, with its place in the code.",
        (
            *WHOSE,
            ("row", "row of slices"),
            ("name", "of the op"),
            ("class", "class by its name: matrix product, attention, normalisation, ..."),
            ("start_ns", "ns"),
            ("host_ns", "time of the op on the host, ns"),
            ("device_ns", "summed time of the work that it launched itself, ns"),
            ("works", "kernels and copies"),
            ("shapes", "input shapes, where recorded"),
            ("module", "module, where known"),
            ("file", "of the program, where known"),
            ("line", "in it"),
        ),
        _ops,
    ),
    "spans": Derived(
        "Every host span with its own time and the device work launched by it and inside it. The backward pass runs "
        "outside the spans of the forward pass; `ops.module` has its module too.",
        (*WHOSE, *spans.COLUMNS),
        spans.span_rows,
    ),
}
"""By name; together with ``TABLES`` all tables for queries."""
