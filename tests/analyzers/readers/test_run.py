"""Runs as traces: the passes become one trace a process, and what is missing or damaged is said."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.load import load
from perfscope.analyzers.readers import run as reader
from perfscope.analyzers.trace import Trace
from perfscope.profiler.errors import DataError
from perfscope.profiler.run import Capture, Process, Run, dump
from tests.analyzers.readers.test_kineto import events, text
from tests.conftest import REPOSITORY

GRAPH = REPOSITORY / "fixtures" / "cpu-moe-loop"
TIMING, DETAIL = "rank00000/timing.pt.trace.json.gz", "rank00000/detail.pt.trace.json.gz"


def captured(name: str, artifact: str | None, reason: str | None = None) -> Capture:
    state: Any = "missing" if artifact is None else "recorded"
    return Capture(pass_name=name, tool="torch_profiler", state=state, artifact=artifact, reason=reason)


def make(folder: Path, process: Process, **more: Any) -> Path:
    """A run directory whose artifacts are small Kineto files."""
    run = Run(
        id=folder.name, name="x", created_utc="2026-01-01T00:00:00", command=("x",), processes=(process,),
        **{"state": "finished", "exit_code": 0, **more},
    )  # fmt: skip
    (folder / "rank00000").mkdir(parents=True)
    (folder / "run.json").write_bytes(dump(run))
    for capture in process.captures:
        if capture.artifact is not None:
            (folder / capture.artifact).write_bytes(gzip.compress(text(events()).encode()))
    return folder


PROCESS = Process(
    rank=0,
    directory="rank00000",
    untraced_step_ns=(50_000, 60_000, 55_000),
    captures=(captured("timing", TIMING), captured("detail", DETAIL), captured("structure", None, "compiled program")),
)


def one(folder: Path) -> Trace:
    (trace,) = reader.read(folder)
    trace.check()
    return trace


def test_times_come_from_the_light_pass_and_sites_from_the_other(tmp_path: Path) -> None:
    trace = one(make(tmp_path / "run", PROCESS))
    assert trace.detail is not None
    assert trace.detail.rows["kernels"].nbytes == trace.rows["kernels"].nbytes
    assert trace.step_times_ns == (50_000, 60_000, 55_000)
    assert trace.source.format == "run"
    assert trace.source.rank is None  # one process: nobody asks which
    assert trace.source.events_read == 2 * len(events())
    assert "structure pass: compiled program" in trace.source.notes
    assert any("1.65 times as long" in note for note in trace.source.notes)


def test_ranks_are_named_where_there_are_several(tmp_path: Path) -> None:
    assert one(make(tmp_path / "run", replace(PROCESS, world_size=8))).source.rank == 0


def test_a_run_that_was_killed_opens_and_says_so(tmp_path: Path) -> None:
    process = replace(PROCESS, captures=(captured("detail", DETAIL),))
    trace = one(make(tmp_path / "run", process, state="killed", exit_code=None))
    assert trace.detail is None
    assert "the run is killed: what had been captured by then is shown" in trace.source.notes
    assert any("no timing pass" in note for note in trace.source.notes)


def test_a_damaged_artifact_costs_itself(tmp_path: Path) -> None:
    folder = make(tmp_path / "run", PROCESS)
    whole = (folder / DETAIL).read_bytes()
    (folder / DETAIL).write_bytes(whole[: len(whole) // 2])
    trace = one(folder)
    assert trace.detail is None
    assert any(note.startswith("detail pass is damaged") for note in trace.source.notes)


def test_an_empty_run_says_why(tmp_path: Path) -> None:
    nothing = replace(PROCESS, captures=(captured("timing", None, "the program ended after step 1"),))
    with pytest.raises(DataError, match=r"run: nothing was captured: the program ended after step 1"):
        reader.read(make(tmp_path / "run", nothing))


def test_a_recorded_run_gives_trace_detail_and_graph() -> None:
    (trace,) = load(GRAPH)
    assert "op_graph" in trace.recorded
    assert trace.op_graph is not None
    assert trace.detail is not None
    assert trace.op_graph.ops
    manifest = json.loads((GRAPH / "run.json").read_text())
    assert trace.step_times_ns == tuple(manifest["processes"][0]["untraced_step_ns"])
