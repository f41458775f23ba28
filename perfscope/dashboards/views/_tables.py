"""Tables of views: columns with a unit, rows of plain values. One form, so that grids and downloads are made once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["text", "code", "ns", "bytes", "count", "share", "number", "chance"]
"""How a value is shown; it is kept as it is: ns and bytes as integers, a share between 0 and 1."""

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


def table(heads: Sequence[Head], rows: Iterable[Sequence[Any]], *, most: int = MOST_ROWS) -> dict[str, Any]:
    """A table as plain values: ``columns``, ``rows`` (each as long as the columns) and how many were left out."""
    held = [list(row) for row in rows]
    columns = [{"key": one.key, "title": one.title, "unit": one.unit, "width": one.width} for one in heads]
    return {"columns": columns, "rows": held[:most], "left": max(0, len(held) - most)}
