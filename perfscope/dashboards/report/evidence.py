"""Evidence as people read it: the unit moves from the key into the cell."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Head, Table, Unit
from perfscope.model.units import format_bytes, format_ns
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perfscope.model.finding import Cell

FIRST_ROWS = 6
"""Rows that are seen without asking."""

MOST_EVIDENCE = 20
"""Rows of a finding: a rule yields no more, but those of many ranks together do."""


PLACES = frozenset({"site", "line", "file", "path", "allocated_at", "at"})
"""Keys of source lines: a long one loses its beginning."""
NAMES = frozenset({"op", "kernel", "module", "function", "host_was_in", "instruction", "computation", "name"})
"""Keys of names of the program: a long one is shortened and not folded."""

LINE_IS = "line_is"
"""What the line of a place is, in words: left out where names and places have no room beside it."""

START = "start_ns"
"""The one key that is a moment of a trace's clock, and no duration."""
SINCE = "since_start_ns"


def shown_rows(rows: Sequence[Mapping[str, Cell]], starts: Mapping[str, int]) -> tuple[dict[str, Cell], ...]:
    """Rows fit to be shown, without the columns that hold nothing in any row.

    Moments are counted from where their trace begins: ``starts`` by the label that a row has as its ``source``, ``""``
    of rows without one. A moment whose beginning is not known is left out.
    """
    told = [_counted(row, starts) for row in rows]
    filled = {key for row in told for key, cell in row.items() if cell is not None and cell != ""}
    return tuple(
        {sanitize(key): sanitize(cell) if isinstance(cell, str) else cell for key, cell in row.items() if key in filled}
        for row in told
    )


def _counted(row: Mapping[str, Cell], starts: Mapping[str, int]) -> Mapping[str, Cell]:
    moment = row.get(START)
    if not isinstance(moment, int):
        return row
    begins = starts.get(str(row.get("source", "")))
    since = None if begins is None else moment - begins
    return {SINCE if key == START else key: since if key == START else cell for key, cell in row.items()}


_UNITS = {"ns": format_ns, "bytes": format_bytes}


def evidence_cell(key: str, value: Cell) -> str:
    """A cell with its unit, which the end of its key tells: ``wait_ns`` -> ``'1.20 ms'``."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    unit = key.rsplit("_", 1)[-1]
    if unit in _UNITS:
        return _UNITS[unit](value)
    if unit in ("percent", "pct"):
        return f"{value:.1f}%"
    if unit == "share":
        return f"{100 * value:.1f}%"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if abs(value) >= 10_000 else str(value)


def evidence_headers(keys: Iterable[str]) -> dict[str, str]:
    """Of the columns of one table, by key. Where two would be called the same, each says what it counts."""
    result = {key: evidence_header(key) for key in keys}
    often = Counter(result.values())
    return {key: head if often[head] == 1 else _with_unit(key) for key, head in result.items()}


def _with_unit(key: str) -> str:
    stem, _, unit = key.rpartition("_")
    return (f"{stem}_time" if unit == "ns" else key).replace("_", " ")


def evidence_table(rows: Sequence[Mapping[str, Cell]], left: int = 0) -> Table:
    """The rows of a finding; ``left``: rows that are not here. ``ValueError`` without a row."""
    if not rows:
        raise ValueError("a finding without evidence has no table of it")
    heads = evidence_headers(rows[0])
    return Table(
        heads=tuple(
            Head(title, _unit(key, [row.get(key) for row in rows]), drop=int(key == LINE_IS))
            for key, title in heads.items()
        ),
        rows=tuple(tuple(evidence_cell(key, row.get(key)) for key in heads) for row in rows),
        few=FIRST_ROWS,
        left=left,
        rest="rows in the JSON report",
    )


def _unit(key: str, cells: Sequence[Cell]) -> Unit:
    if not any(isinstance(cell, str) for cell in cells):
        return "count"
    return "place" if key in PLACES else "code" if key in NAMES else "text"


def evidence_header(key: str) -> str:
    """``wait_ns`` -> ``'wait'``: the unit is in the cells."""
    stem, _, unit = key.rpartition("_")
    return (stem if stem and unit in (*_UNITS, "percent", "pct") else key).replace("_", " ")
