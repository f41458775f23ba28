"""What torch.compile and JAX compiled: frames, breaks, recompilations, graphs, kernels, XLA's programs, stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from perfscope.analyzers.programs import Program, programs
from perfscope.analyzers.torch_compile import CompileSummary, FrameSummary, compile_summary, plain_function
from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.sections.compile import compile_sections, place_text
from perfscope.dashboards.report.sections.programs import programs_sections
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._not_recorded import cards as modelled_cards
from perfscope.dashboards.web.views._tables import MOST_ROWS, Head, rows_table
from perfscope.model.compile_log import CompileLog
from perfscope.model.jax_log import CompileEvent
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

# What one rank compiled as rows of plain values: of torch.compile's log, of JAX's events, of XLA's programs.


TEXT_CHARS = 300
FEW = 12
"""Ops and lines of a kernel, values of a guard."""

RANK = Head(key="rank", title="rank", unit="count", width=74)
HEADS: dict[str, tuple[Head, ...]] = {
    "frames": (
        RANK,
        Head(key="function", title="frame", unit="code", width=230),
        Head(key="ns", title="compile time", unit="ns", width=130),
        Head(key="line", title="line", unit="code", width=210),
        Head(key="state", title="state", width=140),
        Head(key="compiles", title="compiled", unit="count", width=106),
        Head(key="recompiles", title="again", unit="count", width=90),
        Head(key="breaks", title="breaks", unit="count", width=92),
        Head(key="graphs", title="graphs", unit="count", width=92),
        Head(key="ops", title="largest, ops", unit="count", width=124),
        Head(key="restarts", title="begun anew", unit="count", width=118),
        Head(key="caches", title="caches", width=260),
        Head(key="stage", title="longest stage", width=260),
    ),
    "breaks": (
        RANK,
        Head(key="line", title="line", unit="code", width=230),
        Head(key="count", title="records", unit="count", width=100),
        Head(key="left", title="left to eager mode", width=160),
        Head(key="reason", title="reason", width=None),
        Head(key="hint", title="hint", width=360),
        Head(key="doc", title="torch's number", width=130),
    ),
    "recompiles": (
        RANK,
        Head(key="function", title="frame", unit="code", width=190),
        Head(key="line", title="line", unit="code", width=210),
        Head(key="count", title="times", unit="count", width=84),
        Head(key="guard", title="guard that failed", unit="code"),
        Head(key="values", title="values", unit="code", width=220),
        Head(key="needed", title="needed at", unit="code", width=210),
    ),
    "graphs": (
        RANK,
        Head(key="id", title="compilation", unit="code", width=120),
        Head(key="function", title="frame", unit="code", width=230),
        Head(key="direction", title="direction", width=110),
        Head(key="ops", title="ops", unit="count", width=84),
        Head(key="inputs", title="inputs", unit="count", width=90),
        Head(key="outputs", title="outputs", unit="count", width=98),
        Head(key="recomputed", title="recomputed", unit="count", width=118),
        Head(key="most", title="most frequent ops"),
    ),
    "kernels": (
        RANK,
        Head(key="name", title="kernel", unit="code", width=300),
        Head(key="ns", title="time in the recording", unit="ns", width=170),
        Head(key="backend", title="made by", width=100),
        Head(key="calls", title="calls in the code", unit="count", width=150),
        Head(key="ops", title="ATen ops", unit="code"),
        Head(key="lines", title="lines", unit="code", width=260),
    ),
    "programs": (
        RANK,
        Head(key="name", title="program", unit="code", width=240),
        Head(key="runs", title="executions", unit="count", width=116),
        Head(key="ns", title="instructions, all", unit="ns", width=142),
        Head(key="run_ns", title="one run", unit="ns", width=100),
        Head(key="least_ns", title="least possible", unit="ns", width=130),
        Head(key="bound", title="bound by", width=110),
        Head(key="mfu", title="MFU", unit="share", width=84),
        Head(key="hfu", title="HFU", unit="share", width=84),
        Head(key="flops", title="FLOPs a run", unit="number", width=120),
        Head(key="bytes", title="bytes a run", unit="bytes", width=120),
        Head(key="peak", title="peak memory", unit="bytes", width=124),
        Head(key="peak_by", title="basis of peak", width=126),
        Head(key="exact", title="FLOPs are", width=110),
        Head(key="device", title="roof of", width=170),
    ),
    "jax": (
        RANK,
        Head(key="what", title="what", width=140),
        Head(key="ns", title="took", unit="ns", width=100),
        Head(key="function", title="function", unit="code", width=220),
        Head(key="step", title="step", unit="count", width=80),
        Head(key="line", title="called at", unit="code", width=230),
        Head(key="reason", title="why, in jax's words"),
    ),
}
"""Tables of the page; the numbers of ``programs``: executions and times measured, FLOPs, bytes, roof modelled."""


def rows_of(trace: Trace) -> dict[str, list[list[Any]]]:
    """The rows of each table of `HEADS`; empty lists for what was not compiled or not logged."""
    rank = trace.source.rank
    summary = trace.fact(compile_summary)
    result: dict[str, list[list[Any]]] = {name: [] for name in HEADS}
    if summary is not None:
        result |= _of_torch(summary)
    if trace.compile_log is not None:
        result["graphs"] = _graphs(trace.compile_log)
    result["jax"] = [_event(event) for event in trace.compile_events]
    if trace.hlo or len(trace.rows["hlo_ops"]):
        result["programs"] = [_program(program) for program in trace.fact(programs)]
    return {name: [[rank, *row] for row in rows] for name, rows in result.items()}


def stages_of(trace: Trace) -> list[dict[str, Any]]:
    """A frame each with its compile time by stage, which sum to it; empty where the log has no phases."""
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


def _of_torch(summary: CompileSummary) -> dict[str, list[list[Any]]]:
    return {
        "frames": [_frame(frame) for frame in summary.frames],
        "breaks": [
            [
                place_text(break_row.place), break_row.count, "the whole frame" if break_row.whole_frame else "",
                sanitize(break_row.reason, TEXT_CHARS), sanitize(break_row.hint or "", TEXT_CHARS),
                sanitize(break_row.doc_id or ""),
            ]
            for break_row in summary.break_rows
        ],
        "recompiles": [
            [
                sanitize(row.function), place_text(row.place), row.count, sanitize(row.guard, TEXT_CHARS),
                sanitize(", ".join(row.values[:FEW]), TEXT_CHARS),
                "" if row.guard_place is None else place_text(row.guard_place),
            ]
            for row in summary.recompile_rows
        ],
        "kernels": [
            [
                sanitize(kernel.name, TEXT_CHARS), kernel.time_ns, kernel.backend, kernel.calls,
                _few([op.removeprefix("aten.") for op in kernel.ops]),
                _few(list(dict.fromkeys(map(place_text, kernel.places)))),
            ]
            for kernel in summary.kernels
        ],
    }  # fmt: skip


def _few(names: list[str]) -> str:
    more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
    return sanitize(", ".join(names[:FEW]), TEXT_CHARS) + more


def _function(summary: FrameSummary) -> str:
    return sanitize(summary.function) + ("" if summary.after_line is None else f", behind line {summary.after_line}")


def _frame(summary: FrameSummary) -> list[Any]:
    caches = "; ".join(f"{sanitize(name)}: {_counts(results)}" for name, results in summary.caches.items())
    stage = max(summary.stages_ns, key=lambda name: summary.stages_ns[name], default=None)
    return [
        _function(summary), summary.time_ns or None, place_text(summary.place), summary.state,
        summary.compiles, summary.recompiles, summary.breaks,
        sum(group.count for group in summary.graphs) or summary.dynamo_graphs,
        max((group.ops_most for group in summary.graphs), default=None), summary.restarts, caches,
        "" if stage is None else str(stage),
    ]  # fmt: skip


def _counts(results: Mapping[Any, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in results.items())


def _graphs(log: CompileLog) -> list[list[Any]]:
    """The graphs that inductor compiled, the largest first."""
    functions = {item.compile_id: plain_function(item.function) for item in log.compiles if item.function}
    rows = []
    for graph in sorted(log.graphs, key=lambda graph: -len(graph.nodes)):
        ops = Counter(node.op.removeprefix("aten.").removesuffix(".default") for node in graph.nodes)
        most = ", ".join(f"{sanitize(op)} {count:,}x" for op, count in ops.most_common(6))
        rows.append(
            [
                sanitize(graph.compile_id), sanitize(functions.get(graph.compile_id, "")), graph.direction,
                len(graph.nodes),
                len(graph.inputs), len(graph.outputs), len(graph.recomputed), most,
            ]
        )  # fmt: skip
    return rows


_WORDS = {
    "trace": "tracing", "lower": "lowering", "compile": "compiling", "cache_hit": "found in the cache",
    "cache_miss": "not in the cache", "cache_read": "read from the cache", "cache_saved": "saved by the cache",
    "first_trace": "traced first", "retrace": "traced again", "donation_unusable": "donation not used",
}  # fmt: skip


def _event(event: CompileEvent) -> list[Any]:
    line = (
        "" if event.file is None else sanitize(f"{event.file}:{event.line}" if event.line else event.file, TEXT_CHARS)
    )
    return [
        _WORDS[event.kind], event.duration_ns, sanitize(event.function or event.module or ""), event.step, line,
        sanitize(event.reason or "", TEXT_CHARS),
    ]  # fmt: skip


def _program(program: Program) -> list[Any]:
    ran, least, used = program.execution, program.least, program.utilization
    return [
        sanitize(program.name, TEXT_CHARS), None if ran is None else ran.count,
        None if ran is None else ran.instructions_ns, None if ran is None else round(ran.run_ns),
        None if least is None else round(least.total_ns), "" if least is None else least.bound,
        None if used is None else used.mfu, None if used is None else used.hfu, program.flops, program.bytes,
        program.peak_bytes,
        program.peak_known_by or "", "" if program.flops is None else "exact" if program.exact else "at least",
        "" if least is None else sanitize(least.device),
    ]  # fmt: skip


MOST_BARS = 12
"""Frames that are drawn, those that took longest to compile: the table has all."""
MOST_STAGES = 6
"""Stages that have a colour; the others are one."""
REST = "the rest"


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """The rows of one rank, as many as a table holds, and how many there are of each."""
    rows = rows_of(trace)
    return {
        "rows": {name: held[:MOST_ROWS] for name, held in rows.items()},
        "counts": {name: len(held) for name, held in rows.items()},
        "stages": stages_of(trace),
        "log": trace.compile_log is not None,
    }


def view(job: Job) -> dict[str, Any]:
    """``html``: the cards; ``tables``: those that have rows; ``bars``: compile time by frame and stage."""
    sections = (*programs_sections(job.analysis.programs), *compile_sections(job.analysis.compile))
    cards = [modelled_cards(job.analysis), *sections_html(sections)]
    tables = {}
    for name, heads in HEADS.items():
        rows = [row for item in job.gathered for row in item.held["rows"][name]]
        if not rows:
            continue
        ranked = len({row[0] for row in rows}) > 1
        made = rows_table(heads, rows) if ranked else rows_table(heads[1:], [row[1:] for row in rows])
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
    """Of the rank that compiled longest, the frames that took longest; the stages of a frame sum to its time."""
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
