"""Columns declared once: name, dtype, unit, meaning. Readers are checked against the declaration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

if TYPE_CHECKING:
    import pandas as pd

Array = npt.NDArray[Any]

MISSING = -1
"""Stored in a nullable integer column for unknown values; ``<NA>`` at the public edge."""


class Column(Struct, frozen=True, kw_only=True):
    """One declared column.

    ``text`` columns hold int32 codes into ``Trace.strings``; ``refers`` names the table whose row
    index the column holds; ``nullable`` columns may hold ``MISSING``.
    """

    name: str
    dtype: str
    unit: str
    doc: str
    nullable: bool = False
    text: bool = False
    refers: str | None = None
    default: int | None = None
    """Value of every row if a reader leaves the column out."""


class Table(Struct, frozen=True, kw_only=True):
    """A declared table: its name, the meaning of a row, and its columns."""

    name: str
    doc: str
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """The declared column of that name; ``KeyError`` if it does not exist."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(f"{self.name} has no column {name}")


def start_column(what: str) -> Column:
    """``start_ns``: when ``what`` began."""
    return Column(name="start_ns", dtype="int64", unit="ns", doc=f"{what} began, on the trace's clock")


def end_column(what: str) -> Column:
    """``end_ns``: when ``what`` ended."""
    return Column(name="end_ns", dtype="int64", unit="ns", doc=f"{what} ended (half open)")


def text_column(name: str, doc: str, *, nullable: bool = False) -> Column:
    """A column of text, held as codes into the trace's strings."""
    return Column(name=name, dtype="int32", unit="text", doc=doc, text=True, nullable=nullable)


def row_column(name: str, table: str, doc: str, *, nullable: bool = True) -> Column:
    """A column that points at rows of ``table``."""
    return Column(name=name, dtype="int32", unit=f"row of {table}", doc=doc, refers=table, nullable=nullable)


def id_column(name: str, doc: str) -> Column:
    """A number the source gave, or ``MISSING``."""
    return Column(name=name, dtype="int64", unit="id", doc=doc, nullable=True)


class Rows(Mapping[str, Array]):
    """The data of one table: equally long numpy arrays by column name, in declared order."""

    __slots__ = ("_arrays", "table")

    def __init__(self, table: Table, arrays: Mapping[str, npt.ArrayLike]) -> None:
        """Hold ``arrays`` to ``table``: every declared column, no other, one length, right dtype.

        A column that is nullable may be left out and is then all ``MISSING`` (NaN for floats); one with a
        default holds that.
        """
        unknown = set(arrays) - {column.name for column in table.columns}
        if unknown:
            raise ValueError(f"{table.name}: undeclared columns {sorted(unknown)}")
        lengths = {name: len(np.asarray(values)) for name, values in arrays.items()}
        size = next(iter(lengths.values()), 0)
        if any(length != size for length in lengths.values()):
            raise ValueError(f"{table.name}: columns of different length {lengths}")
        held: dict[str, Array] = {}
        for column in table.columns:
            if column.name in arrays:
                held[column.name] = np.asarray(arrays[column.name], dtype=column.dtype)
            elif column.default is not None:
                held[column.name] = np.full(size, column.default, dtype=column.dtype)
            elif column.nullable:
                blank = np.nan if np.dtype(column.dtype).kind == "f" else MISSING
                held[column.name] = np.full(size, blank, dtype=column.dtype)
            elif size == 0:
                held[column.name] = np.empty(0, dtype=column.dtype)
            else:
                raise ValueError(f"{table.name}: column {column.name} is missing")
        self.table = table
        self._arrays = held

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        """Number of rows (not of columns)."""
        first = next(iter(self._arrays.values()), None)
        return 0 if first is None else len(first)

    def __reduce__(self) -> tuple[Any, ...]:
        """A column of one value travels, and is kept where it arrives, as that value alone."""
        columns = {name: values[:1] if _is_constant(values) else values for name, values in self._arrays.items()}
        return _arrived, (self.table.name if _is_declared(self.table) else self.table, len(self), columns)

    def take(self, rows: Array) -> Rows:
        """The given rows (indices or a boolean mask), in that order."""
        return Rows(self.table, {name: values[rows] for name, values in self._arrays.items()})

    def with_columns(self, columns: Mapping[str, Any]) -> Rows:
        """The rows with other values in some columns; a scalar is for all rows."""
        changed = {name: np.broadcast_to(values, len(self)) for name, values in columns.items()}
        return Rows(self.table, {**self._arrays, **changed})

    def with_text_offset(self, offset: int) -> Rows:
        """The rows with all text codes moved by ``offset``: their pool was appended to another one."""
        moved = {column.name: self._arrays[column.name] for column in self.table.columns if column.text}
        return self.with_columns(
            {name: np.where(codes == MISSING, MISSING, codes + offset) for name, codes in moved.items()}
        )

    def freeze(self) -> None:
        """Make the arrays read-only."""
        for values in self._arrays.values():
            values.flags.writeable = False

    @property
    def nbytes(self) -> int:
        """Bytes held by the arrays."""
        return sum(values.nbytes for values in self._arrays.values())

    def frame(self, strings: Sequence[str]) -> pd.DataFrame:
        """As pandas: text decoded to categoricals, ``MISSING`` to ``<NA>``."""
        import pandas as pd

        shown: dict[str, Any] = {}
        for column in self.table.columns:
            values = self._arrays[column.name]
            if column.text:
                shown[column.name] = _decode(values, strings)
            elif column.nullable and values.dtype.kind == "i":
                shown[column.name] = pd.array(values, dtype="Int64")
                shown[column.name][values == MISSING] = pd.NA
            else:
                shown[column.name] = values
        return pd.DataFrame(shown)


def _is_constant(values: Array) -> bool:
    return bool(len(values) and ((values == values[0]) | ((values != values) & (values[0] != values[0]))).all())


def _is_declared(table: Table) -> bool:
    from perfscope.model.trace.tables import TABLES

    return TABLES.get(table.name) is table


def _arrived(table: Table | str, size: int, columns: Mapping[str, Array]) -> Rows:
    """Rows as ``Rows.__reduce__`` sent them; a declared table is named."""
    from perfscope.model.trace.tables import TABLES

    declared = TABLES[table] if isinstance(table, str) else table
    return Rows(declared, {
        name: values if len(values) == size else np.broadcast_to(values[0], size) for name, values in columns.items()
    })  # fmt: skip


def _decode(codes: Array, strings: Sequence[str]) -> Any:
    import pandas as pd

    used, inverse = np.unique(codes, return_inverse=True)
    present = used != MISSING
    names = [strings[code] for code in used[present]]
    compact = np.cumsum(present) - 1
    compact[~present] = MISSING
    if len(set(names)) != len(names):  # two codes may hold the same text
        return pd.array([strings[code] if code != MISSING else None for code in codes], dtype="str")
    return pd.Categorical.from_codes(compact[inverse], categories=pd.Index(names, dtype="str"))
