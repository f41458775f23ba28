"""Recordings of Nsight Systems in a run directory: which trace is whose, and what a damaged one costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.readers import run as reader
from perfscope.analyzers.trace import Trace
from perfscope.profiler.errors import DataError
from perfscope.profiler.run import PROCESS_FILE, RUN_FILE, Capture, Process, Run, dump
from tests.analyzers.readers.nsys_export import Export, names

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
