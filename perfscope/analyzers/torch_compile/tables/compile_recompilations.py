"""Recompilations by function and cause, of torch.compile and of jax."""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.analyzers.torch_compile.jax_causes import jax_recompile_rows
from perfscope.analyzers.torch_compile.summary import RecompileSummary, compile_summary
from perfscope.analyzers.torch_compile.tables import place_of
from perfscope.model.results import Column, Place, ResultTable
from perfscope.model.trace import Trace


def _rows(trace: Trace) -> Iterable[RecompileSummary]:
    summary = trace.fact(compile_summary)
    rows = (*(() if summary is None else summary.recompile_rows), *jax_recompile_rows(trace))
    return sorted(rows, key=lambda row: (-(row.time_ns or 0), -row.count))


RESULT: ResultTable[RecompileSummary] = ResultTable(
    name="compile_recompilations",
    title="Recompilations",
    doc="Functions that were compiled again: one row per function and changed value, the longest first. For "
    "torch.compile the value of a guard that failed, for jax what differs from the calls before.",
    columns=(
        Column("function", str, "code", "name in the program", "key", title="function"),
        Column(
            "place",
            Place | None,
            "place",
            "torch: first line of it; jax: the line that called it",
            "key",
            lambda row: place_of(row.place),
            "line",
        ),
        Column("count", int, "count", "recompilations", title="times"),
        Column("time_ns", int | None, "ns", "time of these recompilations, moments once", title="time"),
        Column("cause", str, "text", "change between the calls", "key"),
        Column("values", tuple[str, ...], "code", "the values, in order, without repeats"),
        Column("fix", str, "text", "advice that avoids it"),
        Column(
            "guard",
            str,
            "code",
            "the guard that failed first in torch's words, or jax's reason",
            "key",
            title="in the compiler's words",
        ),
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
