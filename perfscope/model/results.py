"""Result tables: what an analysis derives from a trace, declared like the tables of a trace (`model/trace/tables.py`).

A `ResultTable` declares its columns once, with name, type, unit and meaning. SQL, Parquet, the JSON report with its
schema, report sections and the grids of the dashboard read that declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any, Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

Unit = Literal[
    "text", "code", "place", "ns", "signed_ns", "bytes", "count", "quantity", "share", "change", "chance", "bytes_per_s"
]
"""Unit of a value, which decides how it is formatted. ``code``: a name of the program, cut at its end if too long;
``place``: a path, a source line or a scope, cut at its beginning; ``quantity``: a count with decimal prefixes;
``share``: 0 to 1; ``change``: relative, with its sign (0.03 is +3.0%); ``chance``: a probability; ``ns`` and
``bytes``: numbers of them."""

Role = Literal["key", "value"]
"""``key`` columns identify a row, also in another recording; ``value`` columns are what is known about it."""

Scope = Literal["trace", "job", "all"]

Row = TypeVar("Row")


class Place(Struct, frozen=True):
    """A line of a source file."""

    file: str
    line: int | None


class Column(Struct, Generic[Row], frozen=True):
    """One declared column of a result."""

    name: str
    """Its name in SQL, Parquet, JSON and CSV."""
    type: Any
    """Type of its values as in an annotation: ``int | None``, ``tuple[str, ...]``, a record."""
    unit: Unit
    doc: str
    """Meaning, without the unit."""
    role: Role = "value"
    of: Callable[[Row], Any] | None = None
    """Value of a row; by default the row's attribute of this name. A row that is a mapping has an item per column."""
    title: str = ""
    """Heading in reports and grids; by default the name in words."""

    @property
    def heading(self) -> str:
        """Heading in reports and grids."""
        return self.title or self.name.removesuffix("_ns").replace("_", " ")

    def value(self, row: Row | Mapping[str, Any]) -> Any:
        """Value of this column in a row, or in the row's record (`ResultTable.record`)."""
        if isinstance(row, Mapping):
            return row[self.name]
        return getattr(row, self.name) if self.of is None else self.of(row)


class ResultTable(Struct, Generic[Row], frozen=True, kw_only=True):
    """A declared result: its columns and how its rows are derived."""

    name: str
    """Name in SQL and JSON, and of its Parquet file."""
    doc: str
    """Meaning of a row."""
    columns: tuple[Column[Row], ...]
    rows: Callable[[Any], Iterable[Any]]
    """Rows of a trace, those that matter most first; its argument and result depend on ``scope``."""
    scope: Scope = "trace"
    """``trace``: ``rows`` takes a trace. ``job``: it takes all traces and returns (number of the job, ``ranks`` or
    ``devices``, row). ``all``: it takes all traces. Rows are records, or tuples in the order of the columns."""
    title: str = ""
    """Heading in reports and on the dashboard; by default the name in words."""
    shown: tuple[str, ...] = ()
    """Columns of its section in reports, in order; none if a section of the capability shows the table."""

    @property
    def heading(self) -> str:
        """Heading in reports and on the dashboard."""
        return self.title or self.name.replace("_", " ")

    def column(self, name: str) -> Column[Row]:
        """The declared column of that name; ``KeyError`` without one."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self.name} has no column {name}")

    def record(self, row: Row) -> dict[str, Any]:
        """A row as plain values by column name."""
        if isinstance(row, tuple):
            return {column.name: plain_value(value) for column, value in zip(self.columns, row, strict=True)}
        return {column.name: plain_value(column.value(row)) for column in self.columns}

    def check(self, row: Row) -> None:
        """``ValueError`` names the column whose value has another type than declared."""
        record = self.record(row)
        for column in self.columns:
            try:
                msgspec.convert(record[column.name], column.type)
            except msgspec.ValidationError as error:
                raise ValueError(f"{self.name}.{column.name}: {error}") from error


class ResultRows(Struct, frozen=True, kw_only=True):
    """Rows of a result table in an analysis."""

    rows: tuple[Mapping[str, Any], ...]
    """``source`` (number of the trace), ``rank``, then the columns, as plain values."""
    left: int = 0
    """Rows that are not kept."""


def plain_value(value: Any) -> Any:
    """A value as JSON, SQL and Arrow hold it: records as dicts, sequences as lists, enums by name."""
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, Mapping):
        return {str(plain_value(key)): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, Struct) or hasattr(value, "__dataclass_fields__"):
        names = value.__struct_fields__ if isinstance(value, Struct) else value.__dataclass_fields__
        return {name: plain_value(getattr(value, name)) for name in names}
    return value
