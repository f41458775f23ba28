"""Exports as folders of parquet files: the same traces as of SQLite; damage is refused in one line."""

from __future__ import annotations

import gzip
import importlib
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from perfscope.analyzers.load import load
from perfscope.analyzers.readers import nsys
from perfscope.analyzers.trace import Trace
from perfscope.profiler.errors import DataError
from tests.analyzers.readers.nsys_export import small, tid_of
from tests.analyzers.readers.test_nsys_ranges import nccl_export
from tests.conftest import corpus_files

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def converted(database: Path, folder: Path) -> Path:
    """The tables of an export as ``nsys`` writes them to a folder: ids unsigned, one file a table."""
    folder.mkdir()
    connection = sqlite3.connect(database)
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        columns = [(row[1], row[2]) for row in connection.execute(f'PRAGMA table_info("{table}")')]
        rows = connection.execute(f'SELECT * FROM "{table}"').fetchall()
        arrays = {}
        for place, (name, kind) in enumerate(columns):
            values = [row[place] for row in rows]
            whole = kind == "INTEGER"
            unsigned = name in ("globalTid", "globalPid", "address")
            if unsigned:
                values = [None if value is None else value % 2**64 for value in values]
            binary = name == "binaryData"
            arrays[name] = pa.array(values, pa.uint64() if unsigned else pa.int64() if whole else pa.binary() if binary
                                    else pa.float64() if kind == "REAL" else pa.string())  # fmt: skip
        pq.write_table(pa.table(arrays), folder / f"{table}.parquet")
    connection.close()
    return folder


def assert_same(first: list[Trace], second: list[Trace]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        assert one.recorded == other.recorded
        assert one.source.notes == other.source.notes
        assert one.source.events_read == other.source.events_read
        for table, rows in one.rows.items():
            for column in rows.table.columns:
                here, there = rows[column.name], other.rows[table][column.name]
                if column.text:
                    assert [one.text(int(code)) for code in here] == [other.text(int(code)) for code in there]
                else:
                    np.testing.assert_array_equal(here, there)


@pytest.mark.parametrize("kind", ["small", "nccl", "memory"])
def test_a_folder_is_the_same_as_the_database(tmp_path: Path, kind: str) -> None:
    export = nccl_export(group=True) if kind == "nccl" else small()
    if kind == "memory":
        export.add(
            "CUDA_GPU_MEMORY_USAGE_EVENTS", start=85_000, globalPid=tid_of(100), deviceId=0, address=-(1 << 62),
            bytes=2 << 20, memKind=2, memoryOperationType=0, correlationId=8,
        )  # fmt: skip
        export.add("META_DATA_CAPTURE", name="PROCESS_0:COLLECT_CUDA_TRACE", value="true")
    database = export.write(tmp_path / "report.sqlite")
    assert_same(nsys.read(database), load(converted(database, tmp_path / "report_pqtdir")))


@pytest.mark.corpus
@pytest.mark.parametrize("path", corpus_files("nsys_sqlite", "*.gz"), ids=lambda path: path.name.split(".")[0])
def test_real_exports_as_folders(path: Path, tmp_path: Path) -> None:
    if "jacobi" in path.name:
        pytest.skip("half a million sampled frames take long to convert")
    database = tmp_path / "report.sqlite"
    database.write_bytes(gzip.decompress(path.read_bytes()))
    assert_same(nsys.read(database), load(converted(database, tmp_path / "report_pqtdir")))


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\x00" * 64 + b"PAR1"])
def test_a_damaged_table_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    folder = converted(small().write(tmp_path / "report.sqlite"), tmp_path / "report_pqtdir")
    (folder / "NVTX_EVENTS.parquet").write_bytes(content)
    with pytest.raises(DataError) as caught:
        load(folder)
    assert "NVTX_EVENTS.parquet: cannot be read as parquet" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_text_where_numbers_belong_is_refused(tmp_path: Path) -> None:
    folder = converted(small().write(tmp_path / "report.sqlite"), tmp_path / "report_pqtdir")
    pq.write_table(pa.table({"start": ["soon"], "end": ["late"]}), folder / "OSRT_API.parquet")
    with pytest.raises(DataError, match=r"OSRT_API\.parquet: cannot be read as parquet"):
        load(folder)


def test_without_pyarrow_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = converted(small().write(tmp_path / "report.sqlite"), tmp_path / "report_pqtdir")

    def absent(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr("perfscope.analyzers.readers.nsys_sqlite.folder.importlib.import_module", absent)
    with pytest.raises(DataError, match="pip install pyarrow"):
        nsys.read(folder)
    assert importlib.import_module is absent
