"""Tables of views: columns with units, rows of plain values. One form for all grids and downloads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from perfscope.analyzers.engine import Analysis
from perfscope.dashboards.report.blocks import Column
from perfscope.dashboards.report.results import shown
from perfscope.dashboards.web.timeline.names import NAME_CHARS
from perfscope.dashboards.web.views._not_recorded import plan_banner
from perfscope.model.finding import NOWHERE, Finding
from perfscope.model.results import ResultTable
from perfscope.model.untrusted_text import sanitize

T = TypeVar("T")

MOST_ROWS = 5_000
"""Most rows of a table in a page; the rows left out are counted."""

_UNITS: dict[str, Any] = {"quantity": "number", "bytes_per_s": "number", "place": "code", "signed_ns": "ns"}
"""Units of the grid for units of the reports."""


def table(columns: Sequence[Column[T]], items: Iterable[T], *, most: int = MOST_ROWS) -> dict[str, Any]:
    """A table as plain values: ``columns``, ``rows`` (each as long as ``columns``) and the number of rows left out."""
    held = list(items)
    heads = [
        {"key": column.key, "title": column.title, "unit": _UNITS.get(column.unit, column.unit), "width": column.width}
        for column in columns
    ]
    rows = [[_cell(column.value(item)) for column in columns] for item in held[:most]]
    return {"columns": heads, "rows": rows, "left": max(0, len(held) - most)}


def table_of_ranks(columns: Sequence[Column[T]], rows: Iterable[tuple[int | None, T]]) -> dict[str, Any]:
    """The same with the rank as first column."""

    def behind(column: Column[T]) -> Column[tuple[int | None, T]]:
        def value(row: tuple[int | None, T]) -> Any:
            return column.value(row[1])

        return Column(column.title, value, column.unit, key=column.key, width=column.width)

    rank: Column[tuple[int | None, T]] = Column("rank", itemgetter(0), "count", key="rank", width=74)
    return table((rank, *map(behind, columns)), rows)


def result_grid(result: ResultTable[T], rows: Sequence[tuple[int | None, T]], counted: int) -> dict[str, Any]:
    """A result table with the rank in front where several ranks have rows, its title and what a row is.

    ``counted``: rows that there are, of which ``rows`` may be the first ones.
    """
    columns = shown(result)
    ranked = len({rank for rank, _ in rows}) > 1
    made = table_of_ranks(columns, rows) if ranked else table(columns, [row for _, row in rows])
    return {**made, "left": counted - len(made["rows"]), "title": result.heading, "doc": result.doc}


def _cell(value: Any) -> Any:
    """Text cleaned for display; numbers unchanged."""
    return sanitize(value, NAME_CHARS) if isinstance(value, str) else value


# Why a finding is not shown on the timeline, in words.


def why_unplaced(analysis: Analysis, finding: Finding, *, anything: bool) -> str:
    """The reason, as the end of a sentence. ``anything``: some event of the recording has a time."""
    programs = bool(analysis.programs.programs)
    if plan_banner(analysis) or (programs and not anything):
        return "compiled program: nothing ran"
    if finding.bytes_are != "moved":
        return _of_memory(analysis)
    if not anything:
        return "no event with a time was recorded"
    if finding.where == NOWHERE:
        return "it is about the recording as a whole"
    return "no recorded event belongs to its line, module, op, kernel or instruction"


def _of_memory(analysis: Analysis) -> str:
    memories = [entry.worst for entry in analysis.memory.entries]
    timed = [memory for memory in memories if memory.space != "program"]
    if not timed:
        return "its memory is that of a compiled program, which counts instructions and no time"
    if any("detail pass" in memory.known_from for memory in timed):
        return "its memory was recorded in the detail pass, after the steps that the timeline shows"
    if all(memory.axis == "event" for memory in timed):
        return "its memory was recorded by the order of its events, without times"
    if all(memory.first == memory.last for memory in timed):
        return "one moment of its memory was recorded"
    return "nothing but memory was recorded"
