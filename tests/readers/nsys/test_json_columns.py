"""Columns that SQLite hands over as JSON equal those that are read row by row."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfscope.analyzers.readers.nsys import database, reader
from perfscope.analyzers.readers.nsys.database import Database, open_database
from perfscope.model.errors import DataError
from tests.conftest import corpus_files, every_file
from tests.native.twins import assert_equal

VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.none(), st.sampled_from([1.5, 2.0, 1e300, "7", "text", b"\x00", b"12"])
)
NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.none())


def columns_of(path: Path, names: tuple[str, ...]) -> dict[str, list[int]] | str:
    try:
        with open_database(path, "t") as opened:
            return {name: values.tolist() for name, values in opened.integers("t", *names).items()}
    except DataError:
        return "refused"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    rows=st.one_of(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=30), st.lists(st.tuples(VALUES, VALUES), max_size=8)),
    create=st.sampled_from(
        ["a INTEGER, b INTEGER", "a, b", "a INTEGER, _rowid_", "a INTEGER, rowid INTEGER", "a INTEGER PRIMARY KEY, b"]
    ),
)
def test_any_table(rows: list[tuple[Any, Any]], create: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("export") / "t.sqlite"
    with sqlite3.connect(path) as made:
        made.execute(f"CREATE TABLE t ({create})")
        for row in rows:
            with contextlib.suppress(sqlite3.IntegrityError):  # Not every value is a key.
                made.execute("INSERT INTO t VALUES (?, ?)", row)
    made.close()
    names = ("a", create.split(", ")[1].split(" ")[0], "absent")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(database, "_BATCH", 7)
        fast = columns_of(path, names)
        patched.setattr(Database, "_as_json", lambda *_: None)
        assert fast == columns_of(path, names)


@pytest.mark.corpus
@pytest.mark.parametrize("path", every_file(corpus_files("nsys_sqlite", "*.sqlite.gz")), ids=lambda path: path.name)
def test_the_corpus_gives_the_same_tables(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = reader.read(path)
    monkeypatch.setattr(Database, "_as_json", lambda *_: None)
    for plain, other in zip(reader.read(path), fast, strict=True):
        assert_equal(plain, other)
