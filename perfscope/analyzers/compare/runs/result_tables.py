"""Result tables of two analyses, joined on their key columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from perfscope.analyzers.engine import Analysis
from perfscope.analyzers.results import result_table
from perfscope.model.documents.comparison import TableChange, ValueChange
from perfscope.model.results import Column, ResultTable

LEAST_CHANGE = 0.02
"""Smallest relative change of a number that is reported: single captures of one program differ by as much."""

MOST_CHANGES = 200
"""Maximum number of values per table, largest relative change first."""

Row = Mapping[str, Any]
Key = tuple[str, ...]


def table_changes(base: Analysis, head: Analysis) -> tuple[TableChange, ...]:
    """Return the result tables with key columns that differ. Values of one capture per side: they are not judged."""
    found = (_change(result_table(name), base, head) for name in sorted({*base.tables, *head.tables}))
    return tuple(change for change in found if change is not None)


def _change(table: ResultTable[Any], base: Analysis, head: Analysis) -> TableChange | None:
    keys = [column for column in table.columns if column.role == "key"]
    sides = [analysis.tables[table.name].rows if table.name in analysis.tables else () for analysis in (base, head)]
    ranked = all(len({row["rank"] for row in rows}) > 1 for rows in sides)
    before, after = ({_key(row, keys, ranked=ranked): row for row in reversed(rows)} for rows in sides)
    changes = [
        value
        for key, row in before.items()
        if key in after
        for column in table.columns
        if column.role == "value"
        for value in _values(" · ".join(filter(None, key)), column, row[column.name], after[key][column.name])
    ]
    changes.sort(key=lambda value: (-_size(value), value.row, value.column))
    added, removed = len(after.keys() - before.keys()), len(before.keys() - after.keys())
    if not keys or not (changes or added or removed):
        return None
    return TableChange(
        table=table.name,
        title=table.heading,
        added=added,
        removed=removed,
        changes=tuple(changes[:MOST_CHANGES]),
        changes_left=max(0, len(changes) - MOST_CHANGES),
    )


def _key(row: Row, keys: list[Column[Any]], *, ranked: bool) -> Key:
    """Key of a row as texts; with the rank if both sides have several."""
    rank = (f"rank {row['rank']}",) if ranked else ()
    return (*rank, *("" if row[column.name] is None else str(row[column.name]) for column in keys))


def _values(row: str, column: Column[Any], base: Any, head: Any, part: str = "") -> Iterator[ValueChange]:
    """Yield the values of a cell that differ: a map has one per key, a list none."""
    if isinstance(base, Mapping) and isinstance(head, Mapping):
        for name in {**base, **head}:
            yield from _values(row, column, base.get(name), head.get(name), str(name))
        return
    if base == head or not all(value is None or isinstance(value, int | float | str) for value in (base, head)):
        return
    value = ValueChange(
        row=row,
        column=" ".join(filter(None, (column.heading, part))),
        unit=column.unit,
        base=_finite(base),
        head=_finite(head),
    )
    if _size(value) >= LEAST_CHANGE:
        yield value


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _size(value: ValueChange) -> float:
    """Change relative to the larger side, 0 to 2; infinite for texts and for a value that one side lacks."""
    base, head = value.base, value.head
    if isinstance(base, str) or isinstance(head, str) or base is None or head is None:
        return math.inf if base != head else 0.0
    return abs(head - base) / max(abs(base), abs(head), 1e-300)
