"""An export as a folder with a parquet file a table (``nsys export --type parquetdir``); needs pyarrow.

The same tables and columns as in SQLite. Integers may be unsigned here; they are kept as SQLite has them, signed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from perfscope.analyzers.readers.builder import ColumnBuffer, Columns
from perfscope.analyzers.readers.nsys.database import NOTHING, NULL, TEXT_BYTES
from perfscope.model.errors import DataError

SUFFIX = ".parquet"
MOST_ROWS = 1 << 31
"""Of one table; a parquet file of a few MB may claim any number."""
_BATCH = 1 << 16


class Folder:
    """The tables of a folder; methods as those of ``Database``. ``DataError``, one line, for whatever is wrong."""

    def __init__(self, folder: Path) -> None:
        """``DataError`` where pyarrow is not installed."""
        try:
            self._parquet: Any = importlib.import_module("pyarrow.parquet")
            self._arrow: Any = importlib.import_module("pyarrow")
        except ImportError as error:
            raise DataError(
                f"{folder}: a folder of parquet files needs pyarrow (pip install pyarrow); or export the report as "
                "SQLite: nsys export --type sqlite REPORT"
            ) from error
        self._folder = folder
        self._files = {place.name.removesuffix(SUFFIX): place for place in sorted(folder.glob(f"*{SUFFIX}"))}

    @property
    def tables(self) -> frozenset[str]:
        """Names of its tables."""
        return frozenset(self._files)

    def columns(self, table: str) -> frozenset[str]:
        """Names of a table's columns; empty where there is no such table."""
        if table not in self._files:
            return frozenset()
        return frozenset(self._guarded(table, lambda: self._parquet.read_schema(self._files[table]).names))

    def integers(self, table: str, *names: str) -> Columns:
        """As ``Database.integers``."""
        return self.mixed(table, names)[0]

    def mixed(
        self,
        table: str,
        names: tuple[str, ...],
        *others: str,
        keep: Mapping[str, Callable[[object], object]] = NOTHING,
    ) -> tuple[Columns, list[list[object]]]:
        """As ``Database.mixed``."""
        held = self.columns(table)
        present = [name for name in names if name in held]
        grown = ColumnBuffer()
        values: list[list[object]] = [[] for _ in others]
        if present:
            for batch in self._batches(table, [*present, *(name for name in others if name in held)]):
                grown.append({name: self._integer(table, batch.column(name)) for name in present})
                for place, name in enumerate(others):
                    found = batch.column(name).to_pylist() if name in held else [None] * batch.num_rows
                    kept = keep.get(name)
                    cut = [one[:TEXT_BYTES] if isinstance(one, str | bytes) else one for one in found]
                    values[place].extend(cut if kept is None else map(kept, cut))
        taken = grown.take() if len(grown) else {}
        size = len(next(iter(taken.values()), ()))
        return {name: taken.get(name, np.full(size, NULL)) for name in names}, values

    def texts(self, ids: set[int]) -> dict[int, str]:
        """As ``Database.texts``: strings of other ids are dropped batch by batch."""
        found: dict[int, str] = {}
        if not ids or not {"id", "value"} <= self.columns("StringIds"):
            return found
        wanted = np.array(sorted(ids), np.int64)
        for batch in self._batches("StringIds", ["id", "value"]):
            numbers = self._integer("StringIds", batch.column("id"))
            mine = np.flatnonzero(np.isin(numbers, wanted))
            texts = batch.column("value").take(self._arrow.array(mine)).to_pylist()
            found.update(
                {
                    number: text[:TEXT_BYTES]
                    for number, text in zip(numbers[mine].tolist(), texts, strict=True)
                    if isinstance(text, str)
                }
            )
        return found

    def settings(self, table: str, keys: tuple[str, ...]) -> dict[str, str]:
        """As ``Database.settings``: values of other keys are not looked at."""
        if not {"name", "value"} <= self.columns(table):
            return {}
        found: dict[str, str] = {}
        for batch in self._batches(table, ["name", "value"]):
            for row, name in enumerate(batch.column("name").to_pylist()):
                if name in keys:
                    found[name] = str(batch.column("value")[row].as_py())[:100]
        return found

    def _batches(self, table: str, columns: list[str]) -> Iterator[Any]:
        opened = self._guarded(table, lambda: self._parquet.ParquetFile(self._files[table]))
        try:
            if opened.metadata.num_rows > MOST_ROWS:
                raise DataError(f"{self._files[table]}: claims {opened.metadata.num_rows:,} rows: refused")
            pieces = opened.iter_batches(batch_size=_BATCH, columns=columns)
            while (batch := self._guarded(table, lambda: next(pieces, None))) is not None:
                yield batch
        finally:
            opened.close()

    def _integer(self, table: str, column: Any) -> Any:
        """A column as int64, ``NULL`` where it has no value; large unsigned numbers as two's complement."""

        def converted() -> Any:
            known = column.cast(self._arrow.int64(), safe=False)
            return known.fill_null(NULL).to_numpy(zero_copy_only=False).astype(np.int64)

        return self._guarded(table, converted)

    def _guarded(self, table: str, work: Callable[[], Any]) -> Any:
        """``work()``; whatever pyarrow says is wrong with the file becomes one line."""
        try:
            return work()
        except (OSError, ValueError, TypeError, KeyError, NotImplementedError, self._arrow.ArrowException) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{self._files[table]}: cannot be read as parquet: {reason}") from error
