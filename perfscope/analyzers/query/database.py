"""An in-memory database with the tables of traces, without access to files, network or extensions."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import UUID

from perfscope.analyzers import results
from perfscope.analyzers.query.frames import DERIVED, frame_of
from perfscope.model.errors import NotStartedError, UsageError
from perfscope.model.trace import TABLES, Trace
from perfscope.model.untrusted_text import clean
from perfscope.model.version import install_command

if TYPE_CHECKING:
    import pandas as pd

_WORD = re.compile(r"[a-z_]+")
_READ = re.compile(r"\b(?:from|join)\s+([a-z_]+)")
MOST_ERROR = 400
"""Characters kept of the database's error message."""
WHOLE = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"})
EXACT = 2**53
"""Whole numbers below this are exact as floats."""
NO_FRAME = ("HUGEINT", "UHUGEINT", "UUID", "BIT", "BLOB")
"""Types that pandas frames cannot hold, or not exactly: their rows are fetched as Python values."""


def table_names() -> tuple[str, ...]:
    """Tables that a query can read, sorted."""
    return tuple(sorted({*TABLES, *DERIVED, *results.table_names()}))


class Database:
    """Answers SQL over traces. Tables are made when a query first names them."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        """``NotStartedError`` if duckdb is not installed."""
        try:
            import duckdb
        except ImportError as error:
            raise NotStartedError(f"query needs duckdb: {install_command('sql')}") from error
        self._traces = tuple(traces)
        self._error: type[Exception] = duckdb.Error
        self._interrupted: type[Exception] = duckdb.InterruptException
        self._connection: Any = duckdb.connect(":memory:", config={"enable_external_access": False})
        self._connection.execute("set lock_configuration = true")
        self._rows: dict[str, int] = {}

    def query(
        self, sql: str, limit_s: float | None = None, remedy: str = "a greater limit_s allows more"
    ) -> pd.DataFrame:
        """Run a query; ``UsageError`` with the database's first line if it is invalid or exceeds ``limit_s``.

        ``remedy``: what the caller can do about a query that was stopped, for the error.

        A column's name may come from the trace (``pivot``) and is cleaned like other texts of a trace.
        """
        for name in _named(sql):
            if name not in self._rows:
                frame = frame_of(name, self._traces)
                self._connection.register(name, frame)
                self._rows[name] = len(frame)
        clock = threading.Timer(limit_s or 0, self._connection.interrupt)
        if limit_s is not None:
            clock.start()
        try:
            result = self._connection.execute(sql)
            if result is None or not result.description:
                raise UsageError("query: the statement returns no rows; begin it with SELECT or FROM")
            kinds = [str(column[1]) for column in result.description]
            answer = _fetched(result, kinds)
        except self._interrupted as error:
            raise UsageError(f"query: stopped after {limit_s:g} s; {remedy}") from error
        except self._error as error:
            message = " ".join(str(error).split())[:MOST_ERROR]
            raise UsageError(f"query: {message} (tables: {', '.join(table_names())})") from error
        finally:
            clock.cancel()
        return answer

    def empty_tables(self, sql: str) -> tuple[str, ...]:
        """Tables of an answered query that have no rows in these traces."""
        read = set(_READ.findall(sql.lower()))
        return tuple(name for name in _named(sql) if name in read and self._rows.get(name) == 0)


def _fetched(result: Any, kinds: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    names = _different([" ".join(clean(str(column[0])).split()) for column in result.description])
    if any(kind in NO_FRAME for kind in kinds):
        rows = [tuple(map(_plain, row)) for row in result.fetchall()]
        return pd.DataFrame({name: _column([row[place] for row in rows]) for place, name in enumerate(names)})
    answer: pd.DataFrame = result.df()
    answer.columns = pd.Index(names)
    return _as_whole(answer, [name for name, kind in zip(names, kinds, strict=True) if kind in WHOLE])


def _different(names: Sequence[str]) -> list[str]:
    """``a, a`` as ``a, a_2``: make column names unique."""
    used: dict[str, None] = {}
    for name in names:
        free = (f"{name}_{number}" for number in count(2))
        used[name if name not in used else next(other for other in free if other not in used)] = None
    return list(used)


def _column(values: list[Any]) -> pd.Series[Any]:
    import pandas as pd

    if {type(value) for value in values} in ({int}, {int, type(None)}):
        return pd.Series(values, dtype="Int64")
    return pd.Series(values, dtype=object).infer_objects()


def _plain(value: object) -> object:
    """Bytes as hexadecimal digits; ids, and whole numbers that JSON readers cannot hold exactly, as text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int):
        return value if abs(value) < EXACT else str(value)
    return str(value) if isinstance(value, UUID) else value


def _as_whole(answer: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Restore whole numbers in columns that pandas made floats because values are missing.

    Columns with a value that a float does not hold exactly stay floats.
    """
    floats = [name for name in names if answer[name].dtype.kind == "f"]
    exact = [name for name in floats if (answer[name].dropna().abs() < EXACT).all()]
    return answer.astype(dict.fromkeys(exact, "Int64"))


def _named(sql: str) -> list[str]:
    """Tables that a query may read: those whose names are words in it."""
    words = set(_WORD.findall(sql.lower()))
    return [name for name in table_names() if name in words]
