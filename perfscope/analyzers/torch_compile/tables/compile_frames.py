"""Frames that torch.compile compiled or left to eager mode."""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.analyzers.torch_compile.summary import FrameSummary, compile_summary
from perfscope.analyzers.torch_compile.tables import place_of
from perfscope.model.results import Column, Place, ResultTable
from perfscope.model.trace import Trace


def _rows(trace: Trace) -> Iterable[FrameSummary]:
    summary = trace.fact(compile_summary)
    return () if summary is None else summary.frames


def _name(frame: FrameSummary) -> str:
    return frame.function if frame.after_line is None else f"{frame.function}, after line {frame.after_line}"


def _graphs(frame: FrameSummary) -> tuple[int, ...]:
    """Dynamo's where inductor compiled none."""
    counts = tuple(group.count for group in frame.graphs)
    return counts or ((frame.dynamo_graphs,) if frame.dynamo_graphs else ())


def _ops(frame: FrameSummary) -> str:
    """``'120-300 + 200'``: from the smallest to the largest graph, by direction."""
    return " + ".join(
        f"{group.ops_most:,}" if group.ops_least == group.ops_most else f"{group.ops_least:,}-{group.ops_most:,}"
        for group in frame.graphs
    )


def _longest_stage(frame: FrameSummary) -> str | None:
    return max(frame.stages_ns, key=lambda stage: frame.stages_ns[stage], default=None)


RESULT: ResultTable[FrameSummary] = ResultTable(
    name="compile_frames",
    title="Frames",
    doc="Code objects that dynamo compiled or left to eager mode: one row per function, or per part of a function "
    "after a graph break. The longest compiled first.",
    columns=(
        Column("function", str, "code", "its name, with the graph break that it follows", "key", _name, "frame"),
        Column(
            "place",
            Place | None,
            "place",
            "its first line, or the user's line that called it",
            "key",
            lambda frame: place_of(frame.place),
            "at",
        ),
        Column("state", str, "text", "what became of it: compiled, eager, partly eager, recompile limit ..."),
        Column("time_ns", int | None, "ns", "compile time", of=lambda frame: frame.time_ns or None),
        Column("compiles", int, "count", "compilations", title="compiled"),
        Column(
            "recompiles",
            int | None,
            "count",
            "compilations because a guard failed",
            of=lambda frame: frame.recompiles or None,
            title="recompiled",
        ),
        Column("breaks", int | None, "count", "graph breaks in it", of=lambda frame: frame.breaks or None),
        Column("graphs", tuple[int, ...], "count", "graphs of the forward and of the backward", of=_graphs),
        Column("ops", str, "text", "ops of these graphs, from the smallest to the largest", of=_ops),
        Column("restarts", int, "count", "attempts beyond the first of each compilation"),
        Column(
            "fx_cache",
            dict[str, int],
            "text",
            "lookups in inductor's FX graph cache by result",
            of=lambda frame: frame.caches.get("fx_graph", {}),
            title="FX cache",
        ),
        Column("caches", dict[str, dict[str, int]], "text", "lookups by cache and result"),
        Column("longest_stage", str | None, "text", "stage with the most compile time", of=_longest_stage),
    ),
    rows=_rows,
)
