"""Rank, world size and job of this process, from the environment variables of a launcher.

One table describes all launchers. A process of the program calls `place_of`; `perfscope run` itself, started once
per task (``srun perfscope run train.py``), calls `task_of`. Only the variables named here are read.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RUN_ID = "PERFSCOPE_RUN_ID"
"""Names the run if the launcher names no job; ``--run-id`` overrides it."""

MOST_RANKS = 100_000

FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""From this number Slurm numbers the batch script, the interactive shell and the like, which are not tasks of a job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """Environment variables with which one launcher describes a task's place."""

    name: str
    rank: str
    world: tuple[str, ...] = ()
    """The first of these that is set."""
    local: str | None = None
    jobs: tuple[tuple[str, ...], ...] = ()
    """Alternatives: variables that together name the job, the same for all its tasks on all nodes."""
    restarts: str | None = None


SLURM = Launcher(
    name="slurm",
    rank="SLURM_PROCID",
    world=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
    local="SLURM_LOCALID",
    jobs=(("SLURM_JOB_ID", "SLURM_STEP_ID"),),
    restarts="SLURM_RESTART_COUNT",
)

LAUNCHERS = (
    Launcher(
        name="torchrun",
        rank="RANK",
        world=("WORLD_SIZE",),
        local="LOCAL_RANK",
        jobs=(("TORCHELASTIC_RUN_ID",),),
        restarts="TORCHELASTIC_RESTART_COUNT",
    ),
    Launcher(
        name="openmpi",
        rank="OMPI_COMM_WORLD_RANK",
        world=("OMPI_COMM_WORLD_SIZE",),
        local="OMPI_COMM_WORLD_LOCAL_RANK",
        jobs=(("PMIX_NAMESPACE",), ("OMPI_MCA_ess_base_jobid",)),
    ),
    Launcher(name="mpi", rank="PMI_RANK", world=("PMI_SIZE",), local="MPI_LOCALRANKID", jobs=(("PMI_JOBID",),)),
    SLURM,
    Launcher(name="pmix", rank="PMIX_RANK", jobs=(("PMIX_NAMESPACE",),)),
    Launcher(name="kubernetes", rank="JOB_COMPLETION_INDEX"),
)
"""The innermost first: a worker of torchrun under mpirun under srun sees the variables of all three, and MPI starts
its daemons through srun, so that Slurm's variables are those of the daemon."""

AGENT = Launcher(name="torchrun", rank="PET_NODE_RANK", world=("PET_NNODES",))
"""Kubeflow's variables for the ``torchrun`` of a pod; its ``RANK`` counts pods or processes, by version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInfo:
    """A process in its job. ``local_rank``: on its machine."""

    rank: int
    world_size: int | None
    local_rank: int | None
    launcher: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One ``perfscope run`` of those that a job started. ``count``: how many, where the launcher reports it.

    ``key``: the same for all tasks of the job and for no other job, made of letters that a file name may have;
    ``None`` if the environment has nothing.
    """

    number: int = 0
    given: bool = False
    """Whether the launcher gave the number; else it is 0, or the next free one."""
    count: int | None = None
    key: str | None = None


def rank_from_environment(environment: Mapping[str, str]) -> RankInfo | None:
    """The process's rank as its launcher reported it; ``None`` without a launcher."""
    launcher = _launcher(environment)
    if launcher is None:
        return None
    rank = _number(environment, launcher.rank)
    assert rank is not None
    return RankInfo(
        rank=rank,
        world_size=_world(environment, launcher, rank),
        local_rank=None if launcher.local is None else _number(environment, launcher.local),
        launcher=launcher.name,
    )


def task_from_environment(environment: Mapping[str, str], run_id: str | None = None) -> Task:
    """Which ``perfscope run`` of its job this is. ``run_id``: the user's own name for the run."""
    launcher = _launcher(environment)
    if _number(environment, AGENT.rank) is not None and not environment.get("LOCAL_RANK"):
        launcher = AGENT  # this process starts torchrun and is not its worker
    named = run_id or environment.get(RUN_ID) or None
    if launcher is None:
        return Task(key=named)
    number = _number(environment, launcher.rank) or 0
    count = _world(environment, launcher, number)
    if named is None and count != 1:
        named = _key(environment, launcher)
    return Task(number=number, given=True, count=count, key=named)


def _launcher(environment: Mapping[str, str]) -> Launcher | None:
    for launcher in LAUNCHERS:
        if _number(environment, launcher.rank) is not None and (launcher is not SLURM or _in_slurm_step(environment)):
            return launcher
    return None


def _in_slurm_step(environment: Mapping[str, str]) -> bool:
    """Whether ``srun`` started us. A batch script has a rank too (0, of all the tasks it may start)."""
    step = environment.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < FIRST_SPECIAL_STEP


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and int(text) < MOST_RANKS else None


def _world(environment: Mapping[str, str], launcher: Launcher, rank: int) -> int | None:
    sizes = (_number(environment, name) for name in launcher.world)
    return next((size for size in sizes if size is not None and size > rank), None)


def _key(environment: Mapping[str, str], launcher: Launcher) -> str | None:
    """A name of the job that all its tasks come to, without asking each other."""
    for given in (launcher, SLURM) if _in_slurm_step(environment) else (launcher,):
        for names in given.jobs:
            values = [environment.get(name, "") for name in names]
            if all(values) and values != ["none"]:  # torchrun writes "none" if no id was given
                restarts = _number(environment, given.restarts) if given.restarts is not None else None
                again = f"-r{restarts}" if restarts else ""
                return f"{given.name}-{'.'.join(values) if given is SLURM else _hashed(*values)}{again}"
    if launcher.name == "torchrun" and "TORCHELASTIC_RUN_ID" in environment and environment.get("MASTER_PORT"):
        return f"torchrun-{_hashed(environment.get('MASTER_ADDR', ''), environment['MASTER_PORT'])}"
    if environment.get("MPI_LOCALNRANKS") and environment["MPI_LOCALNRANKS"] == environment.get("PMI_SIZE"):
        return _of_parent()  # MPICH names no job; here all its tasks are on this machine
    return None


def _of_parent() -> str | None:
    """A name for the process that started us: its number and when it began, since this machine did."""
    parent = os.getppid()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Behind the command's name, which may hold spaces and brackets; 22nd field of proc_pid_stat(5).
        began = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return None
    return f"mpi-{_hashed(boot, str(parent), began)}"


def _hashed(*values: str) -> str:
    """Ids of jobs may hold host names, which no run keeps."""
    return hashlib.sha256("\0".join(values).encode()).hexdigest()[:10]
