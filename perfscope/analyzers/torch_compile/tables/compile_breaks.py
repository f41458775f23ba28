"""Graph breaks by line and reason."""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.analyzers.torch_compile.summary import BreakSummary, compile_summary
from perfscope.analyzers.torch_compile.tables import place_of
from perfscope.model.results import Column, Place, ResultTable
from perfscope.model.trace import Trace


def _rows(trace: Trace) -> Iterable[BreakSummary]:
    summary = trace.fact(compile_summary)
    return () if summary is None else summary.break_rows


RESULT: ResultTable[BreakSummary] = ResultTable(
    name="compile_breaks",
    title="Graph breaks",
    doc="Lines at which a graph ended, by reason: those that left a whole frame to eager mode first, then the most "
    "frequent.",
    columns=(
        Column("place", Place | None, "place", "line of the break", "key", lambda row: place_of(row.place), "line"),
        Column("count", int, "count", "records of the log: one for each frame that an inlined function is in"),
        Column("whole_frame", bool, "text", "the whole frame runs in eager mode", title="left to eager mode"),
        Column("reason", str, "text", "dynamo's reason", "key"),
        Column("hint", str | None, "text", "dynamo's first hint"),
        Column("doc_id", str | None, "text", "torch's number of this kind of break", title="torch's number"),
    ),
    rows=_rows,
)
