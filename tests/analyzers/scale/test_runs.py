"""Run directories: read a part at a time, in processes and on a cluster, they say what they say in memory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from perfscope.__main__ import run as command
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.load import Task, load_path
from perfscope.analyzers.readers import kineto
from perfscope.analyzers.readers._run_parts import RunPart, divide
from perfscope.analyzers.scale import judge as judging
from perfscope.analyzers.scale.cluster import work_on_cluster
from perfscope.analyzers.scale.digest import Digest, digest
from perfscope.analyzers.scale.judge import judge_paths
from perfscope.analyzers.trace import Trace
from perfscope.dashboards.reports import render
from perfscope.profiler.errors import DataError
from perfscope.profiler.run import Capture, Process, Run, dump
from tests.analyzers.readers.test_kineto import events, text
from tests.analyzers.readers.test_nsys_run import make as nsys_run
from tests.analyzers.readers.test_nsys_run import of_devices
from tests.profiler.programs import LOOP, captured, write

JOB = (
    LOOP
    + """
import time, torch.distributed as dist
dist.init_process_group('gloo')
def after():
    if dist.get_rank() == 1:
        time.sleep(0.05)
    dist.all_reduce(torch.ones(4096))
work(16, after)
dist.destroy_process_group()
"""
)
"""Rank 1 comes late to each all-reduce."""


def in_memory(path: Path) -> str:
    loaded = load_path(path)
    return render(replace(analyze(loaded.traces), run=loaded.run), "json")


def report(path: Path, jobs: int) -> str:
    return render(judge_paths([path], jobs=jobs).analysis, "json")


def timing(rank: int, artifact: str | None, reason: str | None = None) -> Process:
    """A process whose light pass lies at ``artifact``."""
    held = Capture(
        pass_name="timing",
        tool="torch_profiler",
        state="missing" if artifact is None else "recorded",
        artifact=artifact,
        reason=reason,
    )
    return Process(
        rank=rank,
        directory=f"rank{rank:05d}",
        world_size=8,
        untraced_step_ns=(50_000_000, 51_000_000),
        captures=(held,),
    )


def make(folder: Path, processes: Sequence[Process]) -> Path:
    run = Run(
        id=folder.name, name="x", created_utc="2026-01-01T00:00:00", command=("x",), state="finished", exit_code=0
    )
    folder.mkdir(parents=True)
    (folder / "run.json").write_bytes(dump(run))
    for process in processes:
        (folder / process.directory).mkdir()
        (folder / process.directory / "process.json").write_bytes(dump(process))
    return folder


@pytest.fixture
def megatron(corpus: Path, tmp_path: Path) -> Path:
    """A run of four of the eight ranks."""
    files = sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_[0-3]*"))
    processes = [timing(rank, f"rank{rank:05d}/timing.pt.trace.json.gz") for rank in range(len(files))]
    folder = make(tmp_path / "perfscope-runs" / "20261120-174233-train-7f3a", processes)
    for file, process in zip(files, processes, strict=True):
        shutil.copy(file, folder / process.directory / "timing.pt.trace.json.gz")
    return folder


def killed_at_rank_two(task: Task, **more: object) -> Digest:
    if isinstance(task, RunPart) and task.name() == "rank00002":
        os.kill(os.getpid(), signal.SIGKILL)
    return digest(task)


@pytest.mark.corpus
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_run_is_judged_as_in_memory(megatron: Path, jobs: int) -> None:
    assert report(megatron, jobs) == in_memory(megatron)
    assert report(megatron.parent, jobs) == in_memory(megatron.parent)
    held = judge_paths([megatron], jobs=jobs)
    assert held.analysis.collectives.jobs[0].recorded == (0, 1, 2, 3)
    assert held.analysis.run is not None
    assert {len(trace.rows["kernels"]) for trace in held.loaded.traces} == {84}  # and not the 690 of the recording


@pytest.mark.corpus
def test_on_a_cluster(megatron: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0"
    ) as cluster:
        mapper = partial(work_on_cluster, address=cluster.scheduler_address)
        assert render(judge_paths([megatron], mapper=mapper).analysis, "json") == in_memory(megatron)


@pytest.mark.corpus
@pytest.mark.parametrize("jobs", [1, 2])
def test_ranks_that_left_nothing_or_damaged_files(megatron: Path, jobs: int) -> None:
    (megatron / "rank00001" / "timing.pt.trace.json.gz").write_bytes(b"\x1f\x8b no gzip")
    (megatron / "rank00003" / "process.json").write_text("{")
    judged = judge_paths([megatron], jobs=jobs)
    assert render(judged.analysis, "json") == in_memory(megatron)
    assert judged.analysis.collectives.jobs[0].recorded == (0, 2)
    said = "\n".join(judged.analysis.sources[0].notes)
    assert "rank00003/process.json cannot be read" in said
    assert "ranks 1, 3, 4, 5, 6, 7 of 8 left nothing here" in said


@pytest.mark.corpus
def test_a_rank_whose_reader_is_killed_is_said(
    megatron: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(judging, "digest", killed_at_rank_two)
    assert command(["analyze", str(megatron), "--jobs", "2", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    assert f"{megatron}/rank00002: not read: what read it was killed by signal 9, twice (out of memory?)" in err
    told = json.loads(out)
    assert [source["rank"] for source in told["sources"]] == [0, 1, 3]
    assert any(note.startswith("rank00002 was not read: ") for note in told["sources"][0]["notes"])


def test_a_rank_that_breaks_its_reader_costs_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [timing(rank, f"rank{rank:05d}/timing.pt.trace.json") for rank in range(3)]
    folder = make(tmp_path / "run", processes)
    for process in processes:
        (folder / process.directory / "timing.pt.trace.json").write_text(text(events()))
    read = kineto.read

    def breaks(path: Path) -> Trace:
        if path.parent.name == "rank00001":
            raise LookupError("row 3")
        return read(path)

    monkeypatch.setattr(kineto, "read", breaks)
    judged = judge_paths([folder], jobs=1)
    assert [trace.source.rank for trace in judged.loaded.traces] == [0, 2]
    (lost,) = judged.loaded.skipped
    assert (lost.path, lost.broken) == (f"{folder}/rank00001", True)
    assert lost.reason == "damaged, or not what it seems: LookupError: row 3"
    assert render(judged.analysis, "json") == in_memory(folder)


def test_processes_of_one_recording_are_one_part(tmp_path: Path) -> None:
    folder = nsys_run(tmp_path, of_devices(100, 200, 300), 3)
    (part,) = divide(folder).parts
    assert len(part.processes) == 3
    assert part.run.processes == ()
    assert part.name() == part.artifacts()[0]
    assert report(folder, 2) == in_memory(folder)


def test_nothing_was_captured(tmp_path: Path) -> None:
    folder = make(tmp_path / "runs" / "a", [timing(0, None, "the program ended after step 1"), timing(1, None)])
    for path in (folder, folder.parent):
        with pytest.raises(DataError, match="nothing was captured: the program ended after step 1") as memory:
            load_path(path)
        with pytest.raises(DataError) as parts:
            judge_paths([path], jobs=2)
        assert str(parts.value) == str(memory.value)


@pytest.mark.torch
@pytest.mark.slow
def test_a_real_job(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    done = captured("--", *launcher, write(tmp_path, JOB), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = (tmp_path / "perfscope-runs" / "latest").resolve()
    assert load_path(folder).traces[0].op_graph is not None
    assert report(folder, 2) == report(folder, 1) == in_memory(folder)
    judged = judge_paths([folder], jobs=2)
    assert judged.analysis["straggler"].findings[0].ranks == (1,)
    assert all(trace.op_graph is None and trace.detail is None for trace in judged.loaded.traces)
