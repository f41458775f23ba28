"""Result tables as columns of reports and grids: title, values and unit come from the declaration."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from perfscope.analyzers.results import result_table
from perfscope.dashboards.report.blocks import Column, Section, Value, table
from perfscope.model.results import Column as Declared
from perfscope.model.results import Place, ResultTable, Unit
from perfscope.model.untrusted_text import sanitize, shorten

if TYPE_CHECKING:
    from perfscope.model.compile_log import CodeLine
    from perfscope.model.results import ResultRows

Row = TypeVar("Row")

FEW = 6
"""Elements of a list that a cell shows."""

PLACE_LIMIT = 34
"""Characters of a line of a file: its folder, its name and the number."""

_WIDTHS = {"code": 230, "place": 220, "ns": 100, "share": 86, "text": 140}
"""Pixels of a column on the dashboard by unit; the others are counts. A column `name` takes the remaining width."""
_COUNT_WIDTH = 100


def shown(
    result: ResultTable[Row],
    *names: str,
    drop: Sequence[str] = (),
    limit: int = 0,
    ranks: bool = False,
    **values: Callable[[Any], Value],
) -> tuple[Column[Any], ...]:
    """The columns of these names, in this order; all of them without names. Items are rows or records of the table.

    ``drop``: columns that go on a narrow terminal, the first one first. ``limit``: characters of names and places.
    ``ranks``: with the rank of each record in front. ``values``: other values of columns than those declared.
    """
    chosen = [result.column(name) for name in names] or result.columns
    columns: list[Column[Any]] = [
        Column(
            column.heading,
            values.get(column.name) or _value(column),
            column.unit,
            drop=drop.index(column.name) + 1 if column.name in drop else 0,
            limit=limit if column.unit in ("code", "place") else 0,
            key=column.name,
            width=None if column.name == "name" else _WIDTHS.get(column.unit, _COUNT_WIDTH),
        )
        for column in chosen
    ]
    rank: Column[Any] = Column("rank", itemgetter("rank"), "count", key="rank", width=74)
    return (rank, *columns) if ranks else tuple(columns)


def _value(column: Declared[Any]) -> Callable[[Any], Value]:
    return lambda row: cell(column.value(row), column.unit)


def cell(value: Any, unit: Unit = "text") -> Value:
    """A value as one cell: numbers and texts as they are, lines of files short, lists and maps in one line.

    A list of numbers is a sum of counts, or else ranks.
    """
    match value:
        case bool():
            return "yes" if value else ""
        case Place():
            return place_text(value)
        case {"file": str() as file, "line": line, **rest} if not rest:
            return place_text(Place(file, line))
        case Mapping():
            numbers = all(isinstance(item, int) for item in value.values())
            texts = [f"{item:,} {name}" if numbers else f"{name}: {cell(item)}" for name, item in value.items()]
            return (", " if numbers else "; ").join(texts)
        case list() | tuple() if all(isinstance(item, int) for item in value):
            return " + ".join(f"{item:,}" for item in value) if unit == "count" else ranks_text(value)
        case list() | tuple():
            texts = list(dict.fromkeys(str(cell(item)) for item in value))
            return ", ".join(texts[:FEW]) + (f" and {len(texts) - FEW} more" if texts[FEW:] else "")
        case _:
            return value  # type: ignore[no-any-return]


def ranks_text(ranks: Sequence[int]) -> str:
    """``0-7``, ``0, 2``, ``0, 8, ... 56``."""
    if len(ranks) > 1 and list(ranks) == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks)) if len(ranks) <= 4 else f"{ranks[0]}, {ranks[1]}, ... {ranks[-1]}"


def table_sections(tables: Mapping[str, ResultRows]) -> Iterator[Section]:
    """One section per result table that names columns to show; with the rank where several ranks have rows."""
    for name, held in tables.items():
        result = result_table(name)
        if result.shown:
            ranks = len({row["rank"] for row in held.rows}) > 1
            columns = shown(result, *result.shown, ranks=ranks)
            yield Section(title=result.heading, blocks=(table(columns, held.rows, left=held.left, rest="rows"),))


def place_text(place: Place | CodeLine) -> str:
    """``'model/mlp.py:41'``: the file with the folder it lies in."""
    parts = PurePath(sanitize(place.file)).parts or ("",)  # masked before it is cut: a folder may be a user's name
    number = "" if place.line is None else f":{place.line}"
    whole = f"{'/'.join(parts[-2:]).lstrip('/')}{number}"
    return whole if len(whole) <= PLACE_LIMIT else f"{shorten(parts[-1], PLACE_LIMIT)}{number}"
