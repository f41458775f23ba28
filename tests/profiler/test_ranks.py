"""Which rank of how many: what each launcher puts into the environment, and which of several is believed."""

from __future__ import annotations

import pytest

from perfscope.profiler.session.ranks import RankInfo, Task, rank_from_environment, task_from_environment

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
    assert task_from_environment(several_nodes) == Task(number=1, told=True, count=6)
    assert task_from_environment({**SLURM, **several_nodes}).key == "slurm-4711.0"


def test_the_users_name_wins_and_one_task_alone_needs_none() -> None:
    assert task_from_environment({**SLURM, "PERFSCOPE_RUN_ID": "mine"}).key == "mine"
    assert task_from_environment({**SLURM, "PERFSCOPE_RUN_ID": "mine"}, "typed").key == "typed"
    assert task_from_environment({"PERFSCOPE_RUN_ID": "mine"}) == Task(key="mine")
    alone = {**SLURM, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}
    assert task_from_environment(alone) == Task(told=True, count=1)


def test_the_torchrun_of_a_pod_is_counted_by_pods() -> None:
    assert task_from_environment({**KUBEFLOW, "PERFSCOPE_RUN_ID": "job"}) == Task(
        number=1, told=True, count=2, key="job"
    )
    assert task_from_environment({**KUBEFLOW, **TORCHRUN, "PERFSCOPE_RUN_ID": "job"}).number == 5
    elastic = {**KUBEFLOW, "PET_NNODES": "1:4", "PERFSCOPE_RUN_ID": "job"}
    assert task_from_environment(elastic) == Task(number=1, told=True, key="job")
    assert task_from_environment({"JOB_COMPLETION_INDEX": "2"}) == Task(number=2, told=True)
