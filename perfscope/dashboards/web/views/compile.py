"""Compilations of torch.compile and JAX: frames, breaks, recompilations, graphs, kernels, XLA's programs, stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from perfscope.analyzers.programs import Program, programs
from perfscope.analyzers.torch_compile import (
    BreakSummary,
    FrameSummary,
    KernelSummary,
    RecompileSummary,
    compile_summary,
    plain_function,
)
from perfscope.dashboards.report.blocks import Column
from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.sections.compile import compile_sections, place_text
from perfscope.dashboards.report.sections.programs import programs_sections
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._not_recorded import cards as modelled_cards
from perfscope.dashboards.web.views._tables import MOST_ROWS, table, table_of_ranks
from perfscope.model.compile_log import CompileLog
from perfscope.model.jax_log import CompileEvent
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

# The compilations of one rank as rows of plain values: torch.compile's log, JAX's events, XLA's programs.


TEXT_CHARS = 300
FEW = 12
"""Most ops and lines of a kernel, and values of a guard, that are named."""


def records_of(trace: Trace) -> dict[str, Sequence[Any]]:
    """The records of each table of `COLUMNS`; empty for what was not compiled or not logged."""
    summary = trace.fact(compile_summary)
    result: dict[str, Sequence[Any]] = dict.fromkeys(COLUMNS, ())
    if summary is not None:
        result |= {
            "frames": summary.frames,
            "breaks": summary.break_rows,
            "recompiles": summary.recompile_rows,
            "kernels": summary.kernels,
        }
    if trace.compile_log is not None:
        result["graphs"] = _graphs(trace.compile_log)
    result["jax"] = trace.compile_events
    if trace.hlo or len(trace.rows["hlo_ops"]):
        result["programs"] = trace.fact(programs)
    return result


def stages_of(trace: Trace) -> list[dict[str, Any]]:
    """One row per frame with its compile time by stage, which sums to the total; empty if the log has no phases."""
    summary = trace.fact(compile_summary)
    return [
        {
            "function": _function(summary),
            "line": place_text(summary.place) if summary.place is not None else "",
            "ns": summary.time_ns,
            "stages": {str(stage): spent for stage, spent in summary.stages_ns.items()},
        }
        for summary in (() if summary is None else summary.frames)
        if summary.stages_ns
    ]


def _few(names: list[str]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return sanitize(", ".join(names[:FEW]), TEXT_CHARS) + more


def _function(summary: FrameSummary) -> str:
    return sanitize(summary.function) + ("" if summary.after_line is None else f", after line {summary.after_line}")


def _caches(summary: FrameSummary) -> str:
    return "; ".join(f"{name}: {_counts(results)}" for name, results in summary.caches.items())


def _stage(summary: FrameSummary) -> str:
    return str(max(summary.stages_ns, key=lambda name: summary.stages_ns[name], default=""))


def _counts(results: Mapping[Any, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in results.items())


class _Graph(Struct, frozen=True):
    """A graph compiled by inductor: numbers of its nodes, and its most frequent ops."""

    compile_id: str
    function: str
    direction: str
    ops: int
    inputs: int
    outputs: int
    recomputed: int
    most: str


def _graphs(log: CompileLog) -> list[_Graph]:
    """Graphs, largest first."""
    functions = {item.compile_id: plain_function(item.function) for item in log.compiles if item.function}
    rows = []
    for graph in sorted(log.graphs, key=lambda graph: -len(graph.nodes)):
        ops = Counter(node.op.removeprefix("aten.").removesuffix(".default") for node in graph.nodes)
        most = ", ".join(f"{op} {count:,}x" for op, count in ops.most_common(6))
        rows.append(
            _Graph(
                graph.compile_id,
                functions.get(graph.compile_id, ""),
                graph.direction,
                len(graph.nodes),
                len(graph.inputs),
                len(graph.outputs),
                len(graph.recomputed),
                most,
            )
        )
    return rows


_WORDS = {
    "trace": "tracing", "lower": "lowering", "compile": "compiling", "cache_hit": "found in the cache",
    "cache_miss": "not in the cache", "cache_read": "read from the cache", "cache_saved": "saved by the cache",
    "first_trace": "traced first", "retrace": "traced again", "donation_unusable": "donation not used",
}  # fmt: skip


def _called(event: CompileEvent) -> str:
    if event.file is None:
        return ""
    return f"{event.file}:{event.line}" if event.line else event.file


FRAMES: tuple[Column[FrameSummary], ...] = (
    Column("frame", lambda row: _function(row), "code", key="function", width=230),
    Column("compile time", lambda row: row.time_ns or None, "ns", key="ns", width=130),
    Column("line", lambda row: place_text(row.place), "code", key="line", width=210),
    Column("state", lambda row: row.state, key="state", width=140),
    Column("compiled", lambda row: row.compiles, "count", key="compiles", width=106),
    Column("again", lambda row: row.recompiles, "count", key="recompiles", width=90),
    Column("breaks", lambda row: row.breaks, "count", key="breaks", width=92),
    Column(
        "graphs",
        lambda row: sum(group.count for group in row.graphs) or row.dynamo_graphs,
        "count",
        key="graphs",
        width=92,
    ),
    Column(
        "largest, ops",
        lambda row: max((group.ops_most for group in row.graphs), default=None),
        "count",
        key="ops",
        width=124,
    ),
    Column("restarts", lambda row: row.restarts, "count", key="restarts", width=118),
    Column("caches", _caches, key="caches", width=260),
    Column("longest stage", _stage, key="stage", width=260),
)
BREAKS: tuple[Column[BreakSummary], ...] = (
    Column("line", lambda row: place_text(row.place), "code", key="line", width=230),
    Column("records", lambda row: row.count, "count", key="count", width=100),
    Column("left to eager mode", lambda row: "the whole frame" if row.whole_frame else "", key="left", width=160),
    Column("reason", lambda row: row.reason, key="reason"),
    Column("hint", lambda row: row.hint or "", key="hint", width=360),
    Column("torch's number", lambda row: row.doc_id or "", key="doc", width=130),
)
RECOMPILES: tuple[Column[RecompileSummary], ...] = (
    Column("frame", lambda row: row.function, "code", key="function", width=190),
    Column("line", lambda row: place_text(row.place), "code", key="line", width=210),
    Column("times", lambda row: row.count, "count", key="count", width=84),
    Column("guard that failed", lambda row: row.guard, "code", key="guard"),
    Column("values", lambda row: ", ".join(row.values[:FEW]), "code", key="values", width=220),
    Column(
        "needed at",
        lambda row: "" if row.guard_place is None else place_text(row.guard_place),
        "code",
        key="needed",
        width=210,
    ),
)
GRAPHS: tuple[Column[_Graph], ...] = (
    Column("compilation", lambda row: row.compile_id, "code", key="id", width=120),
    Column("frame", lambda row: row.function, "code", key="function", width=230),
    Column("direction", lambda row: row.direction, key="direction", width=110),
    Column("ops", lambda row: row.ops, "count", key="ops", width=84),
    Column("inputs", lambda row: row.inputs, "count", key="inputs", width=90),
    Column("outputs", lambda row: row.outputs, "count", key="outputs", width=98),
    Column("recomputed", lambda row: row.recomputed, "count", key="recomputed", width=118),
    Column("most frequent ops", lambda row: row.most, key="most"),
)
KERNELS: tuple[Column[KernelSummary], ...] = (
    Column("kernel", lambda row: row.name, "code", key="name", width=300),
    Column("time in the recording", lambda row: row.time_ns, "ns", key="ns", width=170),
    Column("made by", lambda row: row.backend, key="backend", width=100),
    Column("calls in the code", lambda row: row.calls, "count", key="calls", width=150),
    Column("ATen ops", lambda row: _few([op.removeprefix("aten.") for op in row.ops]), "code", key="ops"),
    Column("lines", lambda row: _few(list(dict.fromkeys(map(place_text, row.places)))), "code", key="lines", width=260),
)
PROGRAMS: tuple[Column[Program], ...] = (
    Column("program", lambda row: row.name, "code", key="name", width=240),
    Column(
        "executions", lambda row: None if row.execution is None else row.execution.count, "count", key="runs", width=116
    ),
    Column(
        "instructions, all",
        lambda row: None if row.execution is None else row.execution.instructions_ns,
        "ns",
        key="ns",
        width=142,
    ),
    Column(
        "one run",
        lambda row: None if row.execution is None else round(row.execution.run_ns),
        "ns",
        key="run_ns",
        width=100,
    ),
    Column(
        "least possible",
        lambda row: None if row.least is None else round(row.least.total_ns),
        "ns",
        key="least_ns",
        width=130,
    ),
    Column("bound by", lambda row: "" if row.least is None else row.least.bound, key="bound", width=110),
    Column("MFU", lambda row: None if row.utilization is None else row.utilization.mfu, "share", key="mfu", width=84),
    Column("HFU", lambda row: None if row.utilization is None else row.utilization.hfu, "share", key="hfu", width=84),
    Column("FLOPs per run", lambda row: row.flops, "quantity", key="flops", width=120),
    Column("bytes per run", lambda row: row.bytes, "bytes", key="bytes", width=120),
    Column("peak memory", lambda row: row.peak_bytes, "bytes", key="peak", width=124),
    Column("basis of peak", lambda row: row.peak_known_by or "", key="peak_by", width=126),
    Column(
        "FLOPs are",
        lambda row: "" if row.flops is None else "exact" if row.exact else "at least",
        key="exact",
        width=110,
    ),
    Column("roof of", lambda row: "" if row.least is None else row.least.device, key="device", width=170),
)
JAX: tuple[Column[CompileEvent], ...] = (
    Column("what", lambda row: _WORDS[row.kind], key="what", width=140),
    Column("took", lambda row: row.duration_ns, "ns", key="ns", width=100),
    Column("function", lambda row: row.function or row.module or "", "code", key="function", width=220),
    Column("step", lambda row: row.step, "count", key="step", width=80),
    Column("called at", _called, "code", key="line", width=230),
    Column("why, in jax's words", lambda row: row.reason or "", key="reason"),
)
COLUMNS: dict[str, tuple[Column[Any], ...]] = {
    "frames": FRAMES,
    "breaks": BREAKS,
    "recompiles": RECOMPILES,
    "graphs": GRAPHS,
    "kernels": KERNELS,
    "programs": PROGRAMS,
    "jax": JAX,
}
"""Tables of the page, without the rank. In ``programs``, executions and times are measured, the rest modelled."""

MOST_BARS = 12
"""Most frames drawn, longest compile time first: the table has all."""
MOST_STAGES = 6
"""Most stages with a separate colour; the others are merged."""
REST = "the rest"


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """The records of one rank, as many as a table holds, and the total number of each."""
    records = records_of(trace)
    return {
        "records": {name: held[:MOST_ROWS] for name, held in records.items()},
        "counts": {name: len(held) for name, held in records.items()},
        "stages": stages_of(trace),
        "log": trace.compile_log is not None,
    }


def view(job: Job) -> dict[str, Any]:
    """``html``: the cards; ``tables``: non-empty tables; ``bars``: compile time by frame and stage."""
    sections = (*programs_sections(job.analysis.programs), *compile_sections(job.analysis.compile))
    cards = [modelled_cards(job.analysis), *sections_html(sections)]
    tables = {}
    for name, columns in COLUMNS.items():
        rows = [(item.source.rank, record) for item in job.gathered for record in item.held["records"][name]]
        if not rows:
            continue
        ranked = len({rank for rank, _ in rows}) > 1
        made = table_of_ranks(columns, rows) if ranked else table(columns, [record for _, record in rows])
        counted = sum(item.held["counts"][name] for item in job.gathered)
        tables[name] = {**made, "left": counted - len(made["rows"])}
    return {
        "html": "".join(cards),
        "tables": tables,
        "bars": _bars(job),
        "log": any(item.held["log"] for item in job.gathered),
        "problems": [*job.analysis.programs.problems, *job.analysis.compile.problems],
    }


def _bars(job: Job) -> list[dict[str, Any]]:
    """For the rank that compiled longest, its longest frames; the stages of a frame sum to its time."""
    held = [item for item in job.gathered if item.held["stages"]]
    if not held:
        return []
    longest = max(held, key=lambda item: sum(frame["ns"] for frame in item.held["stages"]))
    frames = longest.held["stages"]
    sums: dict[str, int] = {}
    for frame in frames:
        for stage, spent in frame["stages"].items():
            sums[stage] = sums.get(stage, 0) + spent
    named = sorted(sums, key=lambda stage: -sums[stage])[:MOST_STAGES]
    rows = []
    for frame in sorted(frames, key=lambda item: -item["ns"])[:MOST_BARS]:
        parts = {stage: frame["stages"].get(stage, 0) for stage in named}
        parts[REST] = sum(frame["stages"].values()) - sum(parts.values())
        rows.append({**frame, "stages": parts, "rank": longest.source.rank, "of": len(frames)})
    return rows
