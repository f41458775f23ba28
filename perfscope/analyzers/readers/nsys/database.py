"""An untrusted SQLite file, read only: real tables, declared columns, bounded work. None of its content is executed.

Tables and columns of an Nsight export depend on its version and on the recording (only tables with rows are written),
so each is looked up before it is read.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol
from urllib.parse import quote

import msgspec
import numpy as np

from perfscope.analyzers.readers.columns import ColumnBuffer, Columns
from perfscope.model.errors import DataError
from perfscope.model.trace import TraceBuilder
from perfscope.model.trace.columns import MISSING, Array

NULL = int(np.iinfo(np.int64).min)
"""Value of an integer column for a row without a value; no time, id or size of a recording equals it."""

TEXT_BYTES = 16 << 10
"""Bytes of a text that are read; the longest kernel names of CUTLASS are shorter."""

NOTHING: Mapping[str, Callable[[object], object]] = MappingProxyType({})

_BATCH = 1 << 16
_ROW_ID, _LARGEST = "_rowid_", 2**63 - 1
_INTEGERS = msgspec.json.Decoder(list[int])
_LENGTH_LIMIT = 64 << 20
"""Maximum bytes of one value or row; SQLite allows 1 GB."""
_STEPS_PER_CALL = 1_000_000
_STEPS_PER_BYTE = 1_000
_STEPS_AT_LEAST = 2_000_000_000
"""Minimum step limit of SQLite's machine; a row of 20 columns takes 100 steps, a file of a few MB 10^8."""
MESSAGE_LETTERS = 200
_PLAIN_FUNCTIONS = frozenset({"coalesce", "ifnull", "substr", "count", "json_group_array", "max"})
_PRAGMAS = frozenset({"table_info"})

_LONGEST_NS = 2**53
"""104 days: a time further from the session's start is a corrupt number."""

_LATEST_EPOCH_NS = 4 * 10**18
"""The year 2096."""


class Export(Protocol):
    """Interface of an export of any file type; the methods are those of ``Database``."""

    @property
    def tables(self) -> frozenset[str]: ...  # noqa: D102

    def columns(self, table: str) -> frozenset[str]: ...  # noqa: D102

    def integers(self, table: str, *names: str) -> Columns: ...  # noqa: D102

    def mixed(  # noqa: D102
        self,
        table: str,
        names: tuple[str, ...],
        *others: str,
        keep: Mapping[str, Callable[[object], object]] = ...,
    ) -> tuple[Columns, list[list[object]]]: ...

    def texts(self, ids: set[int]) -> dict[int, str]: ...  # noqa: D102

    def settings(self, table: str, keys: tuple[str, ...]) -> dict[str, str]: ...  # noqa: D102


class Database:
    """The tables of an open file. ``DataError``, one line, for any fault in it."""

    def __init__(self, connection: sqlite3.Connection, shown: str, size: int) -> None:
        """``shown``: the path in errors; ``size``: bytes of the file, an upper bound of a table's rows."""
        self._connection = connection
        self._shown = shown
        self._size = size
        self._columns: dict[str, frozenset[str]] = {}
        for name, sql in self._rows("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND rootpage > 0"):
            if str(sql).upper().startswith("CREATE TABLE"):
                found = self._rows(f"PRAGMA table_info({_quoted(str(name))})")
                self._columns[str(name)] = frozenset(str(column[1]) for column in found)

    @property
    def tables(self) -> frozenset[str]:
        """Return the names of its real tables (no views, no virtual tables)."""
        return frozenset(self._columns)

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of a table's columns; empty without such a table."""
        return self._columns.get(table, frozenset())

    def integers(self, table: str, *names: str) -> Columns:
        """Return integer columns of all rows, shape (n,), int64; ``NULL`` if the value or the column is absent.

        Empty arrays without such a table.
        """
        return self.mixed(table, names)[0]

    def mixed(
        self, table: str, names: tuple[str, ...], *others: str, keep: Mapping[str, Callable[[object], object]] = NOTHING
    ) -> tuple[Columns, list[list[object]]]:
        """Return integers as in ``integers``, and a list of text or bytes per further column (``None``: no value).

        ``keep``: by column, a function that reduces its values, so that a long table's texts are never all in memory.
        """
        held = self.columns(table)
        present = [name for name in names if name in held]
        optional = [name for name in others if name in held]
        if present and not optional:
            columns = self._as_json(table, present)
            if columns is not None:
                size = len(columns[present[0]])
                found = {name: columns.get(name, np.full(size, NULL)) for name in names}
                return found, [[None] * size for _ in others]
        grown = ColumnBuffer()
        values: list[list[object]] = [[] for _ in others]
        if present:
            wanted = [f"COALESCE({_quoted(name)}, {NULL})" for name in present]
            wanted += [f"SUBSTR({_quoted(name)}, 1, {TEXT_BYTES})" for name in optional]
            keeps = [keep.get(name, _whole) for name in others]
            query = f"SELECT {', '.join(wanted)} FROM {_quoted(table)}"  # noqa: S608 (quoted names)
            for batch in self._batches(query, table):
                split = [row[: len(present)] for row in batch] if optional else batch
                block = self._integers(split, table)
                grown.append({name: np.ascontiguousarray(block[:, index]) for index, name in enumerate(present)})
                for index, name in enumerate(others):
                    at = len(present) + optional.index(name) if name in optional else None
                    values[index].extend(
                        [None] * len(batch) if at is None else [keeps[index](row[at]) for row in batch]
                    )
        result = grown.take() if len(grown) else {}
        size = len(next(iter(result.values()), ()))
        return {name: result.get(name, np.full(size, NULL)) for name in names}, values

    def texts(self, ids: set[int]) -> dict[int, str]:
        """Return the strings of ``StringIds`` with those ids.

        No others are read, because one may hold the environment.
        """
        result: dict[int, str] = {}
        if not {"id", "value"} <= self.columns("StringIds"):
            return result
        wanted = sorted(ids)
        for low in range(0, len(wanted), 500):
            listed = ", ".join(str(one) for one in wanted[low : low + 500])
            sql = f"SELECT id, SUBSTR(value, 1, {TEXT_BYTES}) FROM StringIds WHERE id IN ({listed})"  # noqa: S608 (integers)
            result.update(
                {one: text for one, text in self._rows(sql) if isinstance(one, int) and isinstance(text, str)}
            )
        return result

    def settings(self, table: str, keys: tuple[str, ...]) -> dict[str, str]:
        """Return the values of the given keys from a table of names and values."""
        if not {"name", "value"} <= self.columns(table):
            return {}
        listed = ", ".join(f"'{key}'" for key in keys)
        sql = f"SELECT name, SUBSTR(value, 1, 100) FROM {_quoted(table)} WHERE name IN ({listed})"  # noqa: S608 (ours)
        return {str(name): str(value) for name, value in self._rows(sql)}

    def _as_json(self, table: str, names: list[str]) -> Columns | None:
        """Return integer columns that SQLite hands over as JSON, a text per column and batch instead of a value each.

        ``None`` if the table has other values than integers, or no row ids: then its rows are read one by one.
        """
        wanted = ", ".join(f"COALESCE({_quoted(name)}, {NULL}) AS c{place}" for place, name in enumerate(names))
        lists = ", ".join(f"json_group_array(c{place})" for place in range(len(names)))
        query = (
            f"SELECT MAX(_row), {lists} FROM (SELECT _rowid_ AS _row, {wanted} FROM {_quoted(table)} "  # noqa: S608
            f"WHERE _rowid_ >= ? ORDER BY _rowid_ LIMIT {_BATCH})"
        )
        if _ROW_ID in map(str.lower, self.columns(table)):
            return None
        grown, first = ColumnBuffer(), NULL
        try:
            while first <= _LARGEST:
                row, *texts = self._connection.execute(query, (first,)).fetchone()
                if row is None:
                    break
                if row < first or len(grown) > self._size:
                    return None  # It is corrupt, and has its error when it is read row by row.
                grown.append(
                    {name: np.array(_INTEGERS.decode(text), np.int64) for name, text in zip(names, texts, strict=True)}
                )
                first = row + 1
        except (sqlite3.Error, msgspec.DecodeError, UnicodeDecodeError, OverflowError):
            return None
        return grown.take() if len(grown) else {name: np.empty(0, np.int64) for name in names}

    def _integers(self, batch: list[tuple[object, ...]], table: str) -> np.ndarray:
        try:
            return np.array(batch, np.int64)
        except (TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{self._shown}: table {table} has an invalid number ({error})") from error

    def _rows(self, sql: str) -> list[tuple[object, ...]]:
        return [row for batch in self._batches(sql, "schema") for row in batch]

    def _batches(self, sql: str, table: str) -> Iterator[list[tuple[object, ...]]]:
        seen = 0
        try:
            cursor = self._connection.execute(sql)
            while batch := cursor.fetchmany(_BATCH):
                seen += len(batch)
                if seen > self._size:
                    raise DataError(f"{self._shown}: corrupt: table {table} has more rows than the file has bytes")
                yield batch
        except (sqlite3.Error, UnicodeDecodeError) as error:  # The message itself may quote corrupt text.
            reason = " ".join(str(error).split())[:MESSAGE_LETTERS]
            raise DataError(f"{self._shown}: cannot be read as SQLite ({table}): {reason}") from error


@contextlib.contextmanager
def open_database(path: Path, shown: str) -> Iterator[Database]:
    """Open the database at ``path`` for reading. ``DataError`` if it is not SQLite, or corrupt.

    It is opened without write access, without extensions, without its own functions, triggers or views, and with a
    limit of the work it may cause.
    """
    size = path.stat().st_size
    try:
        connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise DataError(f"{shown}: cannot be opened as SQLite: {error}") from error
    try:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for category, limit in (
            (sqlite3.SQLITE_LIMIT_LENGTH, _LENGTH_LIMIT),
            (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
            (sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        ):
            connection.setlimit(category, limit)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            connection.execute("PRAGMA mmap_size = 0")
            connection.execute("PRAGMA query_only = ON")
        except sqlite3.Error as error:
            raise DataError(f"{shown}: cannot be read as SQLite: {error}") from error
        connection.set_authorizer(_allowed)
        connection.set_progress_handler(_Budget(size), _STEPS_PER_CALL)
        yield Database(connection, shown, size)
    finally:
        connection.close()


class _Budget:
    """Step limit of a query; ``True`` stops it."""

    def __init__(self, size: int) -> None:
        self._left = max(_STEPS_AT_LEAST, size * _STEPS_PER_BYTE) // _STEPS_PER_CALL

    def __call__(self) -> int:
        self._left -= 1
        return int(self._left < 0)


def _allowed(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION and (second or "").lower() in _PLAIN_FUNCTIONS:
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and (first or "").lower() in _PRAGMAS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _whole(value: object) -> object:
    return value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# State that all tables of one export share: its strings, its clock, its processes, and rows that were left out.


class Session:
    """An open export while it is read."""

    def __init__(self, database: Export) -> None:
        self.database = database
        self.pool = TraceBuilder()
        start = database.integers("TARGET_INFO_SESSION_START_TIME", "utcEpochNs")["utcEpochNs"]
        self.epoch_ns = int(start[0]) if len(start) and 0 < start[0] < _LATEST_EPOCH_NS else 0
        """Start of the session in ns of the Unix epoch; 0 if unknown."""
        took = database.integers("ANALYSIS_DETAILS", "duration")["duration"]
        self.ended_ns = self.epoch_ns + int(took[0]) if len(took) == 1 and 0 < took[0] < _LONGEST_NS else None
        """End of the recording on the trace's clock; ``None`` if unknown, or if several machines recorded theirs."""

    def events(self, table: str, *names: str) -> Columns:
        """Return a table of events with ``start_ns`` and ``end_ns`` on the trace's clock, ``process``, and ``names``.

        Rows without a valid time count as unplaced.
        """
        columns = self.database.integers(table, "start", "end", "globalPid", "globalTid", *names)
        return self.timed(columns, table)

    def timed(self, columns: Columns, table: str) -> Columns:
        """Return ``columns`` with ``start`` and ``end`` checked and converted to the trace's clock."""
        start, end = columns.pop("start"), columns.pop("end")
        self.pool.events += len(start)
        sound = (np.abs(start) < _LONGEST_NS) & (np.abs(end) < _LONGEST_NS) & (start != NULL) & (end != NULL)
        open_ended = (np.abs(start) < _LONGEST_NS) & (start != NULL) & (end == NULL)
        backwards = sound & (end < start)
        self._unplaced(f"{table}: a row that never ended", open_ended)
        self._unplaced(f"{table}: a row without a valid time", ~sound & ~open_ended)
        self._unplaced(f"{table}: a row that ends before it starts", backwards)
        kept = sound & ~backwards
        taken = {name: values[kept] for name, values in columns.items()}
        taken["start_ns"], taken["end_ns"] = start[kept] + self.epoch_ns, end[kept] + self.epoch_ns
        taken["process"] = process_of(taken.pop("globalPid"), taken["globalTid"])
        return taken

    def _unplaced(self, reason: str, rows: Array) -> None:
        count = int(rows.sum())
        if count:
            self.pool.unplaced[reason] += count

    def codes(self, ids: Array, written: Callable[[str], str] = str) -> Array:
        """Return the codes of the strings with these ids, shape (n,), int32; ``MISSING`` without one.

        ``written``: converts the text before it is stored.
        """
        distinct, inverse = np.unique(ids, return_inverse=True)
        texts = self.database.texts({one for one in distinct.tolist() if one != NULL})
        codes = [self.pool.code(written(texts[one])) if one in texts else MISSING for one in distinct.tolist()]
        return np.array(codes, np.int32)[inverse].reshape(len(ids)) if len(ids) else np.empty(0, np.int32)


def process_of(global_pid: Array, global_tid: Array) -> Array:
    """Return machine and process of an event, without its thread: shape (n,), int64; ``NULL`` if both ids are unknown.

    A global id has 8 bits of hardware, 8 of virtual machine, 24 of process and 24 of thread.
    """
    known = np.where(global_pid != NULL, global_pid, global_tid)
    return np.where(known != NULL, known >> 24, NULL)


def pid_of(process: int) -> int:
    """Return the number of a process in its system."""
    return process & 0xFFFFFF


def nullable(values: Array) -> Array:
    """Return ``values`` with ``MISSING`` for unknown ones."""
    return np.where((values == NULL) | (values < 0), MISSING, values)
