"""A database in memory that reads the tables of traces, and nothing else: no file, no network, no extension."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfscope.analyzers.query.frames import DERIVED, frame_of
from perfscope.model.errors import NotStartedError, UsageError
from perfscope.model.trace import TABLES, Trace

if TYPE_CHECKING:
    import pandas as pd

_WORD = re.compile(r"[a-z_]+")
_READ = re.compile(r"\b(?:from|join)\s+([a-z_]+)")
MOST_ERROR = 400
"""Characters kept of what the database says of a wrong query."""
WHOLE = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"})
EXACT = 2**53
"""Whole numbers below this are exact as floats."""


def table_names() -> tuple[str, ...]:
    """Everything that a query can read from, sorted."""
    return tuple(sorted({*TABLES, *DERIVED}))


class Database:
    """Answers SQL over some traces. Tables are made when a query first names them."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        """``NotStartedError`` where duckdb is not installed."""
        try:
            import duckdb
        except ImportError as error:
            raise NotStartedError("query needs duckdb: pip install 'perfscope[sql]'") from error
        self._traces = tuple(traces)
        self._error: type[Exception] = duckdb.Error
        self._connection: Any = duckdb.connect(":memory:", config={"enable_external_access": False})
        self._connection.execute("set lock_configuration = true")
        self._rows: dict[str, int] = {}

    def query(self, sql: str) -> pd.DataFrame:
        """The answer; ``UsageError`` with the database's own first line if it is wrong."""
        for name in _named(sql):
            if name not in self._rows:
                frame = frame_of(name, self._traces)
                self._connection.register(name, frame)
                self._rows[name] = len(frame)
        try:
            result = self._connection.execute(sql)
            kinds = [str(column[1]) for column in result.description]
            answer: pd.DataFrame = result.df()
        except self._error as error:
            said = " ".join(str(error).split())[:MOST_ERROR]
            raise UsageError(f"query: {said} (tables: {', '.join(table_names())})") from error
        whole = [name for name, kind in zip(answer.columns, kinds, strict=True) if kind in WHOLE]
        return _as_whole(answer, whole)

    def empty_tables(self, sql: str) -> tuple[str, ...]:
        """Which tables of a query that was answered have no row in these traces."""
        read = set(_READ.findall(sql.lower()))
        return tuple(name for name in _named(sql) if name in read and self._rows.get(name) == 0)


def _as_whole(answer: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Whole numbers as such: pandas has those beside missing ones, and duckdb's sums of 128 bits, as floats.

    Those that a float does not hold exactly stay floats.
    """
    floats = [name for name in names if answer[name].dtype.kind == "f"]
    exact = [name for name in floats if (answer[name].dropna().abs() < EXACT).all()]
    return answer.astype(dict.fromkeys(exact, "Int64"))


def _named(sql: str) -> list[str]:
    """The tables that a query may read: those whose names are words in it."""
    words = set(_WORD.findall(sql.lower()))
    return [name for name in table_names() if name in words]
