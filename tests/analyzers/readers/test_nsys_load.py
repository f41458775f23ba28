"""Nsight exports through the front door: found by content, nothing private read, what is absent is said."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.load import load_path
from perfscope.analyzers.readers import nsys
from perfscope.profiler.errors import DataError
from tests.analyzers.readers.nsys_export import Export, read_one, small


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ("true", "CUDA was traced, and no work on a device was recorded"),
        ("false", "CUDA was not traced"),
        (None, "nothing of CUDA was recorded"),
    ],
)
def test_without_device_work_it_says_what_is_known(tmp_path: Path, told: str | None, said: str) -> None:
    export = Export()
    export.range("work", 0, 10)
    if told is not None:
        export.add("META_DATA_CAPTURE", name="PROCESS_0:COLLECT_CUDA_TRACE", value=told)
    trace = read_one(tmp_path, export)
    assert "device_work" not in trace.recorded
    assert any(note.startswith(said) for note in trace.source.notes)


def test_the_environment_is_never_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export = small()
    export.strings.append("TOKEN=hunter2 in the environment")  # 2022.4 keeps it among the strings
    export.add("TARGET_INFO_SYSTEM_ENV", name="HOSTNAME", value="secret-host")
    export.add("META_DATA_CAPTURE", name="PROCESS_0:ENVIRONMENT_VARIABLE", value="TOKEN=hunter2")
    path = export.write(tmp_path / "report.sqlite")
    asked: list[str] = []
    connect = sqlite3.connect

    def watched(*arguments: Any, **named: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **named)
        connection.set_trace_callback(asked.append)
        return connection

    monkeypatch.setattr("perfscope.analyzers.readers.nsys_sqlite.database.sqlite3.connect", watched)
    (trace,) = nsys.read(path)
    assert not any("hunter2" in text or "secret-host" in text for text in trace.strings)
    assert "hunter2" not in repr(trace.source)
    read_rows = [sql for sql in asked if sql.startswith("SELECT") and "sqlite_master" not in sql]
    assert not any("TARGET_INFO_SYSTEM_ENV" in sql for sql in read_rows)
    assert all("WHERE" in sql for sql in read_rows if "META_DATA_CAPTURE" in sql or "StringIds" in sql)


def test_views_and_virtual_tables_are_not_tables(tmp_path: Path) -> None:
    path = small().write(tmp_path / "report.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME TO hidden")
    connection.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT * FROM hidden")
    connection.commit()
    connection.close()
    (trace,) = nsys.read(path)
    assert len(trace.rows["kernels"]) == 0


def test_load_finds_the_reader_and_every_trace(tmp_path: Path) -> None:
    plain = small().write(tmp_path / "report.sqlite")
    packed = tmp_path / "rank3.sqlite.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    loaded = load_path(packed)
    assert [trace.source.format for trace in loaded.traces] == ["nsys"]
    assert loaded.traces[0].source.rank == 3
    assert loaded.traces[0].source.path == str(packed)
    everything = load_path(tmp_path)
    assert sorted(trace.source.rank is None for trace in everything.traces) == [False, True]


def test_another_database_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "notes.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE notes (text TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(DataError, match="an SQLite database"):
        load_path(path)


def test_a_folder_of_arrow_files_says_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "report_arwdir"
    folder.mkdir()
    (folder / "StringIds.arrow").write_bytes(b"ARROW1")
    with pytest.raises(DataError, match="nsys export --type sqlite"):
        load_path(folder)
