"""Tables of views: columns with a unit, rows of plain values. One form, so that grids and downloads are made once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from perfscope.analyzers.engine import Analysis
from perfscope.dashboards.report.blocks import Column
from perfscope.dashboards.report.summary import OF_MEMORY, FindingRow
from perfscope.dashboards.web.views._not_recorded import told_of
from perfscope.model.finding import NOWHERE, Finding
from perfscope.model.untrusted_text import sanitize

Unit = Literal["text", "code", "ns", "bytes", "count", "share", "number", "chance"]
"""How a value is shown; it is kept as it is: ns and bytes as integers, a share between 0 and 1."""

T = TypeVar("T")

NAME_CHARS = 400
"""Characters of a name in a table."""

MOST_ROWS = 5_000
"""Of a table in a page; what is left out is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A column."""

    key: str
    title: str
    unit: Unit = "text"
    width: int | None = None
    """Pixels; ``None`` takes what is left."""


def table(columns: Sequence[Column[T]], items: Iterable[T], *, most: int = MOST_ROWS) -> dict[str, Any]:
    """A table as plain values: ``columns``, ``rows`` (each as long as the columns) and how many were left out."""
    held = list(items)
    rows = ([_cell(column.value(item)) for column in columns] for item in held[:most])
    heads = [
        Head(key=column.key, title=column.title, unit=_UNITS.get(column.unit, column.unit), width=column.width)
        for column in columns
    ]
    return rows_table(heads, rows, most=most) | {"left": max(0, len(held) - most)}


_UNITS: dict[str, Any] = {"quantity": "number", "bytes_per_s": "number", "place": "code", "signed_ns": "ns"}
"""Units of the grid for those of the reports."""


def _cell(value: Any) -> Any:
    """Text fit to be shown; numbers as they are."""
    return sanitize(value, NAME_CHARS) if isinstance(value, str) else value


def rows_table(heads: Sequence[Head], rows: Iterable[Sequence[Any]], *, most: int = MOST_ROWS) -> dict[str, Any]:
    """The same of rows that are made already."""
    held = [list(row) for row in rows]
    columns = [{"key": head.key, "title": head.title, "unit": head.unit, "width": head.width} for head in heads]
    return {"columns": columns, "rows": held[:most], "left": max(0, len(held) - most)}


# Why a finding shows nowhere on the timeline, in words.


def why_unplaced(analysis: Analysis, row: FindingRow, finding: Finding, *, anything: bool) -> str:
    """The reason, as the end of a sentence. ``anything``: some event of the recording has a time."""
    programs = bool(analysis.programs.programs)
    if told_of(analysis) or (programs and not anything):
        return "compiled program: nothing ran"
    if is_of_memory(row):
        return _of_memory(analysis)
    if not anything:
        return "no event with a time was recorded"
    if finding.where == NOWHERE:
        return "it is about the recording as a whole"
    return "no recorded event is of its line, module, op, kernel or instruction"


def is_of_memory(row: FindingRow) -> bool:
    """Whether its rule is about memory that is held, which a page of its own shows over time."""
    return row.rule in OF_MEMORY


def _of_memory(analysis: Analysis) -> str:
    memories = [entry.worst for entry in analysis.memory.entries]
    timed = [memory for memory in memories if memory.space != "program"]
    if not timed:
        return "its memory is that of a compiled program, which counts instructions and no time"
    if any("detail pass" in memory.known_from for memory in timed):
        return "its memory was recorded in the detail pass, behind the steps that the timeline shows"
    if all(memory.axis == "event" for memory in timed):
        return "its memory was recorded by the order of its events, without times"
    if all(memory.first == memory.last for memory in timed):
        return "one moment of its memory was recorded"
    return "nothing but memory was recorded"
