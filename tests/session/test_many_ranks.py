"""Jobs of several ranks, as launchers start them: one run, each rank's files, and what a dead rank leaves of it."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from perfscope.analyzers.readers.load import load_path
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Run
from tests import warm
from tests.session.programs import LOOP, SECONDS, captured, environment, plain, write

GLOO = (
    LOOP
    + """
import os, signal, torch.distributed as dist
dist.init_process_group('gloo')
turn = 0
def after():
    global turn
    turn += 1
    if turn == 10 and dist.get_rank() == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(4))
work(14, after)
print('rank', dist.get_rank())
dist.destroy_process_group()
"""
)
"""Every rank waits for the others in each step; the rank that is named is killed in its tenth."""

ALONE = (
    LOOP
    + """
import os, signal
def after():
    if os.environ.get('DIES'):
        os.kill(os.getpid(), int(os.environ['DIES']))
work(14, after)
print('task', os.environ.get('SLURM_PROCID'))
sys.exit(int(os.environ.get('CODE', 0)))
"""
)


def slurm(number: int, count: int, **more: str) -> dict[str, str]:
    """The environment of a task under ``srun``."""
    told = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(number),
        "SLURM_LOCALID": str(number),
        "SLURM_STEP_NUM_TASKS": str(count),
        "SLURM_NTASKS": str(count),
    }
    return environment(**told, **more)


def all_ended(tasks: Sequence[subprocess.Popen[str]]) -> list[tuple[int, str, str]]:
    """(exit code, stdout, stderr) of each."""
    outputs = [task.communicate(timeout=SECONDS) for task in tasks]
    return [(task.returncode, out, err) for task, (out, err) in zip(tasks, outputs, strict=True)]


def begin(command: Sequence[str], cwd: Path, env: dict[str, str]) -> subprocess.Popen[str]:
    return warm.Popen(command, cwd=cwd, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run_verb(*words: str) -> list[str]:
    return [sys.executable, "-m", "perfscope", "run", *words]


def run_of(folder: Path) -> tuple[Path, Run]:
    """The one run below ``folder``."""
    (directory,) = run_folders.directories(folder)
    return directory, run_folders.read(directory)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


@pytest.mark.slow
@pytest.mark.torch
def test_a_rank_that_is_killed_leaves_what_it_and_the_others_had(tmp_path: Path) -> None:
    program = write(tmp_path, GLOO)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4"]
    done = captured("--", *launcher, program, "3", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    _, run = run_of(tmp_path / "perfscope-runs")
    assert [(process.rank, process.world_size) for process in run.processes] == [(rank, 4) for rank in range(4)]
    for process in run.processes:  # torchrun ends the others by SIGTERM, inside a collective
        assert {capture.pass_name: capture.state for capture in process.captures}["timing"] == "recorded", process
    analyzed = plain("-m", "perfscope", "analyze", "latest", "--format", "json", cwd=tmp_path)
    assert analyzed.returncode == 0, analyzed.stderr
    assert '"rank": 3' in analyzed.stdout


@pytest.mark.slow
@pytest.mark.torch
def test_srun_perfscope_run_is_one_run_of_which_the_first_task_speaks(tmp_path: Path) -> None:
    program = write(tmp_path, ALONE)
    more: list[dict[str, str]] = [{}, {"CODE": "7"}, {"DIES": str(int(signal.SIGKILL))}]
    tasks = [begin(run_verb(program), tmp_path, slurm(n, 3, **item)) for n, item in enumerate(more)]
    first, second, killed = all_ended(tasks)
    assert [code for code, _, _ in (first, second, killed)] == [0, 7, 128 + signal.SIGKILL]
    assert [out for _, out, _ in (first, second, killed)] == ["task 0\n", "task 1\n", ""]
    assert (second[2], killed[2]) == ("", "")
    directory, run = run_of(tmp_path / "perfscope-runs")
    assert directory.name == "slurm-4711.0"
    assert (tmp_path / "perfscope-runs" / "latest").resolve() == directory.resolve()
    assert (run.state, run.exit_code, run.tasks) == ("finished", 0, 3)
    assert [process.rank for process in run.processes if any(c.artifact for c in process.captures)] == [0, 1]
    assert run.notes == ("task 1: its program ended with 7", "task 2: the program was killed by SIGKILL")
    for said in (*run.notes, "rank 2 of 3 left nothing here", "(run, ranks 0-1,"):
        assert said in first[2]
    assert (directory / "report.html").exists()
    host = os.uname().nodename
    for file in directory.glob("**/*.json"):
        assert host not in file.read_text(), file
    for trace in directory.glob("**/*.pt.trace.json.gz"):
        assert json.loads(gzip.decompress(trace.read_bytes())).get("host_name") in (None, ""), trace


@pytest.mark.slow
@pytest.mark.torch
def test_a_first_task_that_fails_gives_its_code_at_once_and_the_run_opens(tmp_path: Path) -> None:
    program = write(tmp_path, ALONE)
    # No other process ever comes: waiting for them would take longer than a test may.
    done = captured("--wait", str(10 * SECONDS), program, cwd=tmp_path, env=slurm(0, 2, CODE="3"))
    assert (done.returncode, done.stdout) == (3, "task 0\n")
    assert "rank 1 of 2 left nothing" in done.stderr


@pytest.mark.slow
@pytest.mark.torch
def test_folders_of_machines_that_share_no_files_are_one_job_when_analyzed(tmp_path: Path) -> None:
    program = write(tmp_path, ALONE)
    tasks = [
        begin(run_verb("--wait", "0", "--no-report", "-o", f"node{n}", program), tmp_path, slurm(n, 2)) for n in (0, 1)
    ]
    first, second = all_ended(tasks)
    assert (first[0], second[0]) == (0, 0)
    assert "rank 1 of 2 left nothing" in first[2]
    (line,) = second[2].splitlines()
    assert "task 0 does not write here" in line
    folders = [str(run_of(tmp_path / f"node{n}")[0]) for n in (1, 0)]
    alone = load_path(folders[0])
    assert [trace.source.rank for trace in alone.traces] == [1]
    assert any("rank 0 of 2 left nothing" in note for note in alone.traces[0].source.notes)
    both = plain("-m", "perfscope", "analyze", *folders, cwd=tmp_path)
    assert both.returncode == 0, both.stderr
    assert "ranks 0-1" in both.stdout
    assert "left nothing" not in both.stdout


def test_a_job_that_nothing_names_is_said(tmp_path: Path) -> None:
    program = write(tmp_path, "print('ran')\n")
    told = environment(PMI_RANK="0", PMI_SIZE="4", MPI_LOCALNRANKS="2")  # two nodes, started by hydra
    done = captured(program, cwd=tmp_path, env=told)
    assert "4 tasks, and no variable that names their job" in done.stderr
    other = captured(program, cwd=tmp_path, env={**told, "PMI_RANK": "3"})
    assert re.fullmatch(r"perfscope: task 3: run kept in perfscope-runs/\S+-train-\S+\n", other.stderr)
    again = captured("--run-id", "mine", "--wait", "0", program, cwd=tmp_path, env=told)
    assert "nothing that names" not in again.stderr
    assert run_folders.is_run(tmp_path / "perfscope-runs" / "mine")


JAX = """
import sys
import jax
jax.config.update('jax_cpu_collectives_implementation', 'gloo')
jax.distributed.initialize(coordinator_address=sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ('data',))
x = jax.make_array_from_callback((8, 16), NamedSharding(mesh, P('data')), lambda at: np.ones((8, 16), 'f4')[at])
w = jax.make_array_from_callback((16, 4), NamedSharding(mesh, P()), lambda at: np.ones((16, 4), 'f4')[at])

@jax.jit
def train_step(w, x):
    return w - 0.001 * jax.grad(lambda w: ((x @ w) ** 2).sum())(w)

for _ in range(12):
    w = train_step(w, x)
    w.block_until_ready()
print('process', jax.process_index(), jax.process_count())
"""


@pytest.mark.slow
@pytest.mark.jax
def test_jax_distributed_says_the_rank_and_a_run_id_makes_one_run(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    program = write(tmp_path, JAX)
    address = f"127.0.0.1:{free_port()}"
    command = run_verb("--run-id", "two", "--no-report", program, address)
    told = environment(JAX_PLATFORMS="cpu", XLA_FLAGS="")
    done = all_ended([begin([*command, str(number)], tmp_path, told) for number in (1, 0)])
    assert [(code, out.splitlines()[-1]) for code, out, _ in done] == [(0, "process 1 2"), (0, "process 0 2")], done
    directory, run = run_of(tmp_path / "perfscope-runs")
    assert directory.name == "two"
    assert [(process.rank, process.world_size) for process in run.processes] == [(0, 2), (1, 2)]
    assert [trace.source.rank for trace in load_path(directory).traces] == [0, 1]
    name = os.uname().nodename.encode()
    told_hosts = bytes((4 << 3 | 2, len(name))) + name  # XSpace.hostnames
    for trace in directory.glob("rank*/timing.xplane.pb"):
        assert told_hosts not in trace.read_bytes()


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    "mpirun",
    [["mpirun.openmpi", "--allow-run-as-root", "--oversubscribe"], ["mpirun.mpich"]],
    ids=lambda command: str(command[0]),
)
def test_mpirun_perfscope_run_is_one_run(tmp_path: Path, mpirun: list[str]) -> None:
    if shutil.which(mpirun[0]) is None:
        pytest.skip(f"no {mpirun[0]} here")
    program = write(tmp_path, LOOP + "work(14)\n")
    done = subprocess.run(
        [*mpirun, "-n", "3", *run_verb(program)], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    _, run = run_of(tmp_path / "perfscope-runs")
    assert run.tasks == 3
    assert [(process.rank, process.world_size) for process in run.processes] == [(rank, 3) for rank in range(3)]
    assert done.stderr.count("report.html") == 1
