"""Breaks each statement of the store in turn: `tests/faults/inject.py` with one more scenario."""

from __future__ import annotations

import os
import sqlite3
import sys
from typing import Any

from perfscope.__main__ import run
from perfscope.plugins.history.store import database
from tests.faults import inject
from tests.faults.inject import Fault


def watch(fault: Fault) -> None:
    """Report each statement of the store."""

    class Statements(database.Session):
        def execute(self, sql: str, **values: Any) -> int:
            fault.write(sqlite3.OperationalError("database or disk is full"))
            return super().execute(sql, **values)

    database.Session = Statements  # type: ignore[misc]


def set_baseline() -> int:
    """A second baseline in addition to the first."""
    return run(["baseline", "set", "second", "run-1"])


def store_is_clean() -> None:
    """The first baseline is there, and the second can be set (again)."""
    rows = sqlite3.connect("store.sqlite").execute("PRAGMA integrity_check").fetchall()
    assert rows == [("ok",)], rows
    assert run(["baseline", "list", "first"]) == 0
    assert set_baseline() == 0
    assert run(["baseline", "rm", "second"]) == 0


if __name__ == "__main__":
    inject.WATCHES.append(watch)
    inject.SCENARIOS["store"] = ("", set_baseline, store_is_clean)
    os.chdir(sys.argv[4])
    inject.main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
