"""Which rank of how many: what each launcher puts into the environment, and which of several is believed."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Process, Run, dump
from perfscope.model.documents.run_folders import read
from perfscope.model.documents.run_list import list_runs
from perfscope.model.errors import NotStartedError
from perfscope.profiler.launch import record
from perfscope.profiler.session.ranks import RankInfo, Task, rank_from_environment, task_from_environment
from tests.conftest import REPOSITORY

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "TORCHELASTIC_RUN_ID": "269cba44",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "MASTER_ADDR": "node17.example",
    "MASTER_PORT": "41865",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_MCA_ess_base_jobid": "2087649281",
    "PMIX_NAMESPACE": "2087649281",
    "PMIX_RANK": "1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NTASKS": "16",
    "SLURM_STEP_NUM_TASKS": "4",
}
BATCH_SCRIPT = {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "16"}
KUBEFLOW = {"RANK": "1", "WORLD_SIZE": "16", "PET_NODE_RANK": "1", "PET_NNODES": "2", "MASTER_PORT": "23456"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        (TORCHRUN, (5, 8, 1, "torchrun")),
        (OPENMPI, (1, 2, 1, "openmpi")),
        (MPICH, (1, 3, 1, "mpi")),
        (SLURM, (3, 4, 1, "slurm")),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": ""}, (3, 16, 1, "slurm")),
        ({"PMIX_RANK": "2", "PMIX_NAMESPACE": "prterun-node17-99@1"}, (2, None, None, "pmix")),
        ({"JOB_COMPLETION_INDEX": "4"}, (4, None, None, "kubernetes")),
        ({**KUBEFLOW, **TORCHRUN}, (5, 8, 1, "torchrun")),
        # each launcher below is started by the one before it
        ({**SLURM, **TORCHRUN}, (5, 8, 1, "torchrun")),
        ({**SLURM, **OPENMPI}, (1, 2, 1, "openmpi")),
        ({**SLURM, **MPICH}, (1, 3, 1, "mpi")),
        ({"RANK": "3"}, (3, None, None, "torchrun")),
        # a world that cannot be
        ({"RANK": "3", "WORLD_SIZE": "2"}, (3, None, None, "torchrun")),
    ],
)
def test_the_rank_is_the_innermost_launchers(
    environment: dict[str, str], place: tuple[int, int | None, int | None, str]
) -> None:
    rank, world_size, local_rank, launcher = place
    assert rank_from_environment(environment) == RankInfo(
        rank=rank, world_size=world_size, local_rank=local_rank, launcher=launcher
    )


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"RANK": ""},
        {"RANK": "first"},
        {"RANK": "-1"},
        {"RANK": "٣"},
        {"RANK": "99999999999"},
        BATCH_SCRIPT,
        {**BATCH_SCRIPT, "SLURM_STEP_ID": str(0xFFFFFFFB)},  # as Slurm numbers the batch script
        {**BATCH_SCRIPT, "SLURM_STEP_ID": str(0xFFFFFFFA)},  # the shell of salloc
    ],
)
def test_where_nobody_told_a_rank_there_is_none(environment: dict[str, str]) -> None:
    assert rank_from_environment(environment) is None
    assert task_from_environment(environment) == Task()


def test_all_tasks_of_a_job_come_to_one_name_and_other_jobs_to_others() -> None:
    for environment, rank in ((TORCHRUN, "RANK"), (OPENMPI, "OMPI_COMM_WORLD_RANK"), (SLURM, "SLURM_PROCID")):
        tasks = [task_from_environment({**environment, rank: str(number)}) for number in (0, 1)]
        assert [task.number for task in tasks] == [0, 1]
        assert len({task.key for task in tasks} - {None}) == 1
    assert task_from_environment(SLURM).key == "slurm-4711.0"
    assert task_from_environment({**SLURM, "SLURM_STEP_ID": "1"}).key == "slurm-4711.1"
    assert task_from_environment({**SLURM, "SLURM_RESTART_COUNT": "2"}).key == "slurm-4711.0-r2"
    assert (
        task_from_environment(TORCHRUN).key != task_from_environment({**TORCHRUN, "TORCHELASTIC_RUN_ID": "other"}).key
    )
    assert (
        task_from_environment({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "1"}).key
        == f"{task_from_environment(TORCHRUN).key}-r1"
    )


def test_a_torchrun_without_an_id_is_told_by_where_its_ranks_meet() -> None:
    unnamed = {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}
    assert task_from_environment(unnamed).key == task_from_environment({**unnamed, "RANK": "0", "LOCAL_RANK": "0"}).key
    assert task_from_environment(unnamed).key != task_from_environment({**unnamed, "MASTER_PORT": "41866"}).key


def test_no_host_name_is_in_a_name() -> None:
    environments = (
        {**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"},
        {"PMIX_RANK": "2", "PMIX_NAMESPACE": "prterun-node17-99@1"},
    )
    for environment in environments:
        key = task_from_environment(environment).key
        assert key is not None
        assert "node17" not in key


def test_mpich_names_no_job_and_is_told_by_the_process_that_started_us() -> None:
    here = task_from_environment(MPICH)
    assert here.key is not None
    assert task_from_environment({**MPICH, "PMI_RANK": "2"}).key == here.key
    several_nodes = {**MPICH, "PMI_SIZE": "6"}
    assert task_from_environment(several_nodes) == Task(number=1, given=True, count=6)
    assert task_from_environment({**SLURM, **several_nodes}).key == "slurm-4711.0"


def test_the_users_name_wins_and_one_task_alone_needs_none() -> None:
    assert task_from_environment({**SLURM, "PERFSCOPE_RUN_ID": "mine"}).key == "mine"
    assert task_from_environment({**SLURM, "PERFSCOPE_RUN_ID": "mine"}, "typed").key == "typed"
    assert task_from_environment({"PERFSCOPE_RUN_ID": "mine"}) == Task(key="mine")
    alone = {**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    assert task_from_environment(alone) == Task(given=True, count=1)


def test_the_torchrun_of_a_pod_is_counted_by_pods() -> None:
    assert task_from_environment({**KUBEFLOW, "PERFSCOPE_RUN_ID": "job"}) == Task(
        number=1, given=True, count=2, key="job"
    )
    assert task_from_environment({**KUBEFLOW, **TORCHRUN, "PERFSCOPE_RUN_ID": "job"}).number == 5
    elastic = {**KUBEFLOW, "PET_NNODES": "1:4", "PERFSCOPE_RUN_ID": "job"}
    assert task_from_environment(elastic) == Task(number=1, given=True, key="job")
    assert task_from_environment({"JOB_COMPLETION_INDEX": "2"}) == Task(number=2, given=True)


TASKS = 8


def task(number: int = 0, count: int | None = None, key: str = "job", *, given: bool = True) -> Task:
    return Task(number=number, given=given, count=count, key=key)


def manifest(number: int = 0, **more: object) -> Run:
    usual = {"id": "job", "name": "n", "created_utc": "2026-01-01T00:00:00+00:00", "command": ("a.py",)}
    return Run(**{**usual, "state": "finished", "exit_code": 0, "task": number, **more})  # type: ignore[arg-type]


def ended(directory: Path, number: int = 0, seconds_ago: float = 0, **more: object) -> None:
    """Task ``number`` wrote its last ``seconds_ago``."""
    run_folders.write(directory, manifest(number, **more))
    then = time.time() - seconds_ago
    os.utime(directory / run_folders.manifest_name(number), (then, then))


def _join_job(arguments: tuple[str, int, int, bool]) -> tuple[str, int]:
    root, job, number, told = arguments
    joined = record.join(Path(root), task(number if told else 0, key=f"job{job}", given=told))
    # A task's next action: its manifest shows the others that it lives.
    run_folders.write(joined.directory, manifest(joined.number))
    return joined.directory.name, joined.number


@pytest.mark.parametrize("told", [True, False])
def test_tasks_that_start_at_once_share_a_directory_and_no_number(tmp_path: Path, told: bool) -> None:
    asked = [(str(tmp_path), job, number, told) for number in range(TASKS) for job in range(2)]
    if not told:  # without a number only tasks that find others running join; here no manifest was written yet
        for job in range(2):
            (tmp_path / f"job{job}").mkdir()
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(_join_job if told else _join_only, asked, chunksize=1)
    for job in range(2):
        assert sorted(found[job::2]) == [(f"job{job}", number) for number in range(TASKS)]


def _join_only(arguments: tuple[str, int, int, bool]) -> tuple[str, int]:
    root, job, _, told = arguments
    joined = record.join(Path(root), task(key=f"job{job}", given=told))
    return joined.directory.name, joined.number


def test_a_second_job_of_that_name_gets_another_directory_for_all_its_tasks(tmp_path: Path) -> None:
    first = [record.join(tmp_path, task(number)).directory for number in (0, 1)]  # its task 2 never came
    for number, directory in enumerate(first):
        ended(directory, number, record.LATE_S + 1)
    again = [record.join(tmp_path, task(number)) for number in (2, 0, 1)]
    assert [(item.directory.name, item.earlier) for item in again] == [("job-2", True)] * 3
    assert run_folders.manifests(tmp_path / "job")[0].read_bytes() == dump(manifest())
    assert (tmp_path / "latest").resolve().name == "job-2"


def test_a_task_whose_number_is_taken_is_another_jobs(tmp_path: Path) -> None:
    first, second = record.join(tmp_path, task(1)), record.join(tmp_path, task(1))
    assert [item.directory.name for item in (first, second)] == ["job", "job-2"]


def test_a_late_task_joins_while_others_run_and_shortly_after(tmp_path: Path) -> None:
    directory = record.join(tmp_path, task(0)).directory
    ended(directory, 0, record.LATE_S + 1, state="running")
    with run_folders.alive(directory, 0):
        assert record.join(tmp_path, task(1)).directory == directory
    ended(directory, 0, record.LATE_S - 20)
    assert record.join(tmp_path, task(2)).directory == directory
    ended(directory, 0, record.LATE_S + 1)
    assert record.join(tmp_path, task(3)).directory.name == "job-2"


def test_a_run_of_that_name_again_without_a_number_is_a_run_of_its_own(tmp_path: Path) -> None:
    first = record.join(tmp_path, task(given=False))
    ended(first.directory, 0)
    second = record.join(tmp_path, task(given=False))
    assert (second.directory.name, second.number, second.earlier) == ("job-2", 0, True)


def test_what_is_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "job").write_text("mine")
    (tmp_path / "job-2").mkdir()
    os.utime(tmp_path / "job-2", (1, 1))  # a folder of another program
    assert record.join(tmp_path, task(0)).directory.name == "job-3"
    assert (tmp_path / "job").read_text() == "mine"
    with pytest.raises(NotStartedError, match="no run directory can be made"):
        record.join(tmp_path / "job" / "below", task(0))


@pytest.mark.parametrize("key", ["../../etc", "/", "..", ".", "a b/c", "x" * 300])
def test_no_name_leads_out_of_the_folder(tmp_path: Path, key: str) -> None:
    root = tmp_path / "runs"
    joined = record.join(root, task(0, key=key))
    assert joined.directory.parent == root
    assert not joined.directory.name.startswith(".")
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_the_first_task_waits_for_those_that_run_and_for_those_to_come(tmp_path: Path) -> None:
    directory = record.join(tmp_path, task(0, 3)).directory
    ended(directory, 0)
    ended(directory, 1, state="running")
    done = threading.Event()
    waiter = threading.Thread(target=lambda: (record.await_others(directory, task(0, 3), 60), done.set()))
    holder = (
        "import sys; from pathlib import Path; from perfscope.model.documents import run_folders\n"
        "with run_folders.alive(Path(sys.argv[1]), 1):\n    print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        waiter.start()
        ended(directory, 2)
        assert not done.wait(0.5), "task 1 runs"
        process.kill()
        assert done.wait(30), "task 1 was killed"
    waiter.join()


def test_it_does_not_wait_longer_than_asked(tmp_path: Path) -> None:
    directory = record.join(tmp_path, task(0, 3)).directory
    ended(directory, 0)
    record.await_others(directory, task(0, 3), 0.3)
    assert [path.name for path in run_folders.manifests(directory)] == ["run.json"]


def test_the_manifests_of_all_tasks_are_one_run(tmp_path: Path) -> None:
    job = tmp_path / "job"
    job.mkdir()
    run_folders.write(job, manifest(0, tasks=6))
    run_folders.write(job, manifest(1, tasks=6))
    for number in (2, 3):
        run_folders.write(job, manifest(number, exit_code=137, notes=("the program was killed by SIGKILL",)))
    run_folders.write(job, manifest(4, exit_code=1))
    run_folders.write(job, manifest(5, state="running", exit_code=None))
    run = read(job)
    assert (run.state, run.exit_code) == ("finished", 0)
    assert run.notes == (
        "tasks 2, 3: the program was killed by SIGKILL",
        "task 4: its program ended with 1",
        "task 5: its perfscope was killed",
    )
    with run_folders.alive(job, 5):
        assert read(job).notes[-1] == "task 5: it still runs"
        assert run_folders.prune(tmp_path, 0) == []


def test_a_task_or_a_process_that_left_damaged_files_takes_nothing_else_along(tmp_path: Path) -> None:
    for number in range(3):
        run_folders.write(tmp_path, manifest(number))
        (tmp_path / f"rank{number:05d}").mkdir()
        whole = dump(Process(rank=number, directory=f"rank{number:05d}", world_size=3))
        (tmp_path / f"rank{number:05d}" / "process.json").write_bytes(whole[: 0 if number == 1 else None])
    (tmp_path / run_folders.manifest_name(2)).write_text("{")
    run = read(tmp_path)
    assert [process.rank for process in run.processes] == [0, 2]
    assert [note.split(":")[0] for note in run.notes] == [
        "run-task00002.json cannot be read",
        "rank00001/process.json cannot be read",
    ]


def test_tasks_without_the_first_are_a_run_too_and_are_pruned_whole(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    for number in (5, 4):
        run_folders.write(directory, replace(manifest(number), name=str(number)))
    assert run_folders.is_run(directory)
    assert (read(directory).task, read(directory).name) == (4, "4")
    assert record.is_lead_task(directory, 4)
    assert not record.is_lead_task(directory, 5)
    assert [list_run.directory for list_run in list_runs(tmp_path)] == [directory]
    assert run_folders.prune(tmp_path, 0) == [directory]
    assert not directory.exists()


def test_runs_named_by_their_job_are_listed_by_age_with_the_others(tmp_path: Path) -> None:
    for name in ("20260101-000000-a-1111", "slurm-4711.0", "20990101-000000-b-2222"):
        (tmp_path / name).mkdir()
        run_folders.write(tmp_path / name, manifest())
    assert [path.name[:5] for path in run_folders.directories(tmp_path)] == ["20990", "slurm", "20260"]
