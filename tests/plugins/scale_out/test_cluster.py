"""The work on a real Dask cluster of three processes: the same answer, also when a worker is killed half way."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.judge import JudgeTask, judge_paths
from perfscope.analyzers.readers.load import Task, TaskResult
from perfscope.analyzers.readers.workers import LostTask
from perfscope.dashboards.report import render
from perfscope.model.errors import DataError, NotStartedError, UsageError
from perfscope.model.version import install_command
from perfscope.plugins.scale_out import remote as clustering
from perfscope.plugins.scale_out.remote import work_on_cluster

distributed = pytest.importorskip("distributed")

WORKERS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with distributed.LocalCluster(
        n_workers=WORKERS, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0"
    ) as cluster:
        yield cluster


@pytest.fixture
def megatron(corpus: Path, tmp_path: Path) -> Path:
    for file in sorted((corpus / "kineto").glob("astra-sim__megatron_kineto_*")):
        shutil.copy(file, tmp_path)
    return tmp_path


def worker_of(number: int) -> tuple[int, int]:
    return number, os.getpid()


def always_kills(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def breaks(number: int) -> int:
    raise DataError("file: cut off")


def no_memory(number: int) -> int:
    raise MemoryError


@pytest.mark.slow
@pytest.mark.corpus
def test_a_set_is_judged_as_here(cluster: Any, megatron: Path) -> None:
    assert render(judge_paths([megatron], scheduler=cluster.scheduler_address).analysis, "json") == render(
        judge_paths([megatron], jobs=1).analysis, "json"
    )


@pytest.mark.slow
@pytest.mark.corpus
def test_a_worker_killed_half_way_loses_nothing(cluster: Any, megatron: Path) -> None:
    killed: list[int] = []

    def executor(work: JudgeTask, tasks: Sequence[Task]) -> Iterator[tuple[int, TaskResult | LostTask]]:
        for place, done in work_on_cluster(work, tasks, address=cluster.scheduler_address):
            yield place, done
            if not killed:
                with distributed.Client(cluster.scheduler_address, set_as_default=False) as client:
                    killed.append(next(iter(client.run(os.getpid).values())))
                os.kill(killed[0], signal.SIGKILL)

    analysis = judge_paths([megatron], executor=executor).analysis
    assert len(killed) == 1
    assert analysis.collectives.jobs[0].recorded == tuple(range(8))
    assert render(analysis, "json") == render(judge_paths([megatron], jobs=1).analysis, "json")


@pytest.mark.slow
def test_the_work_is_done_by_the_workers(cluster: Any) -> None:
    done = dict(work_on_cluster(worker_of, range(12), address=cluster.scheduler_address))
    assert {place: result[0] for place, result in done.items() if not isinstance(result, LostTask)} == {
        number: number for number in range(12)
    }
    assert os.getpid() not in {result[1] for result in done.values() if not isinstance(result, LostTask)}


@pytest.mark.slow
def test_what_kills_every_worker_is_lost_alone(cluster: Any) -> None:
    done = dict(work_on_cluster(always_kills, range(4), address=cluster.scheduler_address))
    assert done == {0: 0, 1: LostTask(why="was killed with its worker several times"), 2: 2, 3: 3}


@pytest.mark.slow
def test_what_the_work_raises(cluster: Any) -> None:
    with pytest.raises(DataError, match="file: cut off"):
        list(work_on_cluster(breaks, range(2), address=cluster.scheduler_address))
    assert dict(work_on_cluster(no_memory, range(1), address=cluster.scheduler_address)) == {
        0: LostTask(why="had no memory left")
    }


def test_workers_of_another_version(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = clustering.perfscope_version()
    monkeypatch.setattr(clustering, "version", lambda _: "99.0")
    with pytest.raises(NotStartedError, match=rf"has perfscope {theirs}, here is 99\.0"):
        list(work_on_cluster(worker_of, range(2), address=cluster.scheduler_address))


def test_no_scheduler_and_no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustering, "CONNECT_S", 1)
    with pytest.raises(NotStartedError, match="no Dask scheduler answers"):
        list(work_on_cluster(worker_of, range(2), address="tcp://127.0.0.1:9"))
    with pytest.raises(UsageError, match="--scheduler nonsense://x: "):
        list(work_on_cluster(worker_of, range(2), address="nonsense://x"))
    with (
        distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=":0") as empty,
        pytest.raises(NotStartedError, match="has no workers"),
    ):
        list(work_on_cluster(worker_of, range(2), address=empty.scheduler_address))


def test_dask_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UsageError, match=re.escape(install_command("cluster"))):
        list(work_on_cluster(worker_of, range(2), address="tcp://127.0.0.1:9"))


@pytest.mark.corpus
def test_the_command(cluster: Any, megatron: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (megatron / "notes.txt").write_text("eight ranks")
    assert run(["analyze", str(megatron), "--scheduler", cluster.scheduler_address]) == 0
    out, err = capsys.readouterr()
    assert "8 traces" in out.splitlines()[0]
    assert "notes.txt" in err
    assert run(["analyze", str(megatron), "--scheduler", cluster.scheduler_address, "--jobs", "2"]) == 2
