"""Recompilations by frame and guard."""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.analyzers.torch_compile.summary import RecompileSummary, compile_summary
from perfscope.analyzers.torch_compile.tables import place_of
from perfscope.model.results import Column, Place, ResultTable
from perfscope.model.trace import Trace


def _rows(trace: Trace) -> Iterable[RecompileSummary]:
    summary = trace.fact(compile_summary)
    return () if summary is None else summary.recompile_rows


RESULT: ResultTable[RecompileSummary] = ResultTable(
    name="compile_recompilations",
    title="Recompilations",
    doc="Frames that were compiled again because a guard failed: one row per frame and guarded value, the most "
    "frequent first.",
    columns=(
        Column("function", str, "code", "name in the program", "key", title="frame"),
        Column("place", Place | None, "place", "first line of it", "key", lambda row: place_of(row.place), "line"),
        Column("count", int, "count", "recompilations", title="times"),
        Column("guard", str, "code", "the guard that failed first, in torch's words", title="guard that failed"),
        Column("values", tuple[str, ...], "code", "what the guard compared with, in order, without repeats"),
        Column(
            "guard_place",
            Place | None,
            "place",
            "line that made the guard necessary",
            of=lambda row: place_of(row.guard_place),
            title="needed at",
        ),
    ),
    rows=_rows,
)
