"""Nsight exports through the main entry: recognised by content, nothing private read, missing data reported."""

from __future__ import annotations

import gzip
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.load import load_all, load_path
from perfscope.analyzers.readers.nsys import reader as export_module
from perfscope.analyzers.readers.nsys import reader as nsys_reader
from perfscope.analyzers.readers.run import reader as reader
from perfscope.model.documents.run import PROCESS_FILE, RUN_FILE, Capture, Process, Run, dump
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace
from tests.readers.nsys.exports import Export, names, read_one, small
from tests.readers.refusals import refused


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

    monkeypatch.setattr("perfscope.analyzers.readers.nsys.database.sqlite3.connect", watched)
    (trace,) = nsys_reader.read(path)
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
    (trace,) = nsys_reader.read(path)
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


HEAD = b"NVIDIA Tegra Profiler Report 2025@5@1@121-1v0.\x00\x01"


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "train.nsys-rep"
    path.write_bytes(HEAD)
    return path


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program ``nsys`` as the only one on PATH but the shell's own."""
    tools = folder / "tools"
    tools.mkdir()
    program = tools / "nsys"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")


def test_a_report_is_exported_and_read(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = small().write(tmp_path / "made.sqlite")
    install(tmp_path, monkeypatch, f'[ "$1 $2 $3 $4" = "export --type sqlite --output" ] && cp {made} "$5"')
    (trace,) = load_all(report)
    assert len(trace.rows["kernels"]) == 1
    assert trace.source.path == str(report)


def test_without_nsys_it_says_where_to_run_what(report: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    said = refused(load_all, report)
    assert "only `nsys` can read a report of Nsight Systems by 2025.5.1, and it is not on PATH" in said
    assert "nsys export --type sqlite --output train.sqlite train.nsys-rep" in said


def test_an_older_nsys_is_named(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        '[ "$1" = --version ] && { echo "NVIDIA Nsight Systems version 2022.4.2.1-df9881f"; exit 0; }\n'
        'echo "Exportation error: Version number is invalid: 2025@5@1@121" >&2; exit 1'
    )
    install(tmp_path, monkeypatch, script)
    assert "written by 2025.5.1, newer than the nsys here (2022.4.2.1)" in refused(load_all, report)


def test_another_failure_is_passed_on(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, 'echo "Processing..."; echo "disk full" >&2; exit 3')
    assert "`nsys export` failed (exit 3): disk full" in refused(load_all, report)


def test_an_export_that_does_not_end_is_ended(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_module, "SECONDS", 0.2)
    install(tmp_path, monkeypatch, "exec sleep 60")
    assert "took more than" in refused(load_all, report)


@pytest.mark.corpus
def test_real_reports_without_nsys(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = [refused(load_all, path) for path in sorted((corpus / "nsys_rep").iterdir())]
    assert len(said) == 2
    assert "a report of Nsight Systems by 2025.5.1, and it is not on PATH" in said[0]
    assert "a report of Nsight Systems, and it is not on PATH" in said[1]  # an older report does not tell its version


ARTIFACT = "nsys/export.sqlite"


def make(folder: Path, export: Export | None, processes: int, steps: tuple[int, int] | None = None) -> Path:
    (folder / "nsys").mkdir()
    if export is not None:
        export.write(folder / ARTIFACT)
    for rank in range(processes):
        capture = Capture(pass_name="timing", tool="nsys", state="recorded", steps=steps, artifact=ARTIFACT)
        (folder / f"rank{rank:05d}").mkdir()
        process = Process(rank=rank, directory=f"rank{rank:05d}", step_source="perfscope.step", captures=(capture,))
        (folder / f"rank{rank:05d}" / PROCESS_FILE).write_bytes(dump(process))
    run = Run(id="x", name="x", created_utc="2026-01-01T00:00:00+00:00", command=("x",), state="finished")
    (folder / RUN_FILE).write_bytes(dump(run))
    return folder


def of_devices(*pids: int) -> Export:
    export = Export()
    for place, pid in enumerate(pids):
        export.kernel(f"kernel_of_{pid}", place * 100, place * 100 + 50, pid=pid)
    return export


def kernels(traces: list[Trace]) -> list[tuple[int | None, list[str]]]:
    return [(trace.source.rank, names(trace, "kernels")) for trace in traces]


def test_processes_with_devices_are_given_out_in_their_order(tmp_path: Path) -> None:
    traces = reader.read(make(tmp_path, of_devices(200, 100), 2))
    assert kernels(traces) == [(0, ["kernel_of_100"]), (1, ["kernel_of_200"])]


def test_a_process_more_than_left_a_manifest_is_a_trace_of_its_own(tmp_path: Path) -> None:
    traces = reader.read(make(tmp_path, of_devices(100, 200), 1))
    assert [kernel for _, kernel in kernels(traces)] == [["kernel_of_100"], ["kernel_of_200"]]


def test_processes_that_no_device_tells_apart_are_one_trace_which_says_so(tmp_path: Path) -> None:
    (trace,) = reader.read(make(tmp_path, of_devices(100), 3))
    assert any("3 processes in one timeline" in note for note in trace.source.notes)


@pytest.mark.parametrize(
    ("told", "left"),
    [
        ((2, 5), [2, 3, 4]),  # it ended well: 5 is what ran when it did
        ((2, 6), [2, 3, 4, 5]),  # and here its steps end where their `with` does
        ((2, 3), [2, 3, 4]),  # killed: what it told of its steps is old
        (None, [2, 3, 4]),
    ],
)
def test_the_step_that_the_end_cut_off_is_left_out(
    tmp_path: Path, told: tuple[int, int] | None, left: list[int]
) -> None:
    export = of_devices(100)
    for number in range(2, 6):
        export.range(f"perfscope.step#{number}", number * 20, number * 20 + 10)
    (trace,) = reader.read(make(tmp_path, export, 1, told))
    assert trace.rows["steps"]["number"].tolist() == left


@pytest.mark.parametrize("content", [None, b"", b"SQLite format 3\0 and no more"])
def test_a_recording_that_is_gone_or_damaged_is_said(tmp_path: Path, content: bytes | None) -> None:
    make(tmp_path, None, 2)
    if content is not None:
        (tmp_path / ARTIFACT).write_bytes(content)
    with pytest.raises(DataError, match=ARTIFACT):
        reader.read(tmp_path)
