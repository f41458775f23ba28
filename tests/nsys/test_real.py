"""The real Nsight Systems, where there is one, in ``perfscope run`` and alone: steps and regions arrive."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.load import load_path
from perfscope.model.trace import SliceKind, Trace
from perfscope.profiler.nsys import command
from tests.readers.nsys.exports import names
from tests.session.programs import captured, environment, latest, passes, write

pytestmark = [pytest.mark.nsys, pytest.mark.torch]

STEPS = """
import sys, time
import torch
import perfscope

for turn in range(9):
    with perfscope.region("matmul"):
        torch.randn(64, 64) @ torch.randn(64, 64)
    time.sleep(0.01)
    perfscope.step()
"""

LOOP = """
import time
import perfscope

for turn in range(5):
    time.sleep(0.01)
    perfscope.step()
"""


@pytest.fixture(autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One Nsight Systems at a time, also in several processes of pytest: two at once fail occasionally."""
    if (why := command.available()) is not None:
        pytest.skip(why)
    base = tmp_path_factory.getbasetemp()
    with (base.parent if base.name.startswith("popen") else base).joinpath("nsys.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def by_nsys(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """``perfscope run --capture nsys ARGUMENTS``; again if Nsight Systems lost its agent, as it may on a busy machine.

    Its daemon then holds the pipes of the run, which looks as if the run did not end.
    """
    try:
        done = captured("--capture", "nsys", *arguments, cwd=cwd, timeout=60)
        if "Connection reset by peer" not in done.stderr:
            return done
    except subprocess.TimeoutExpired as error:
        if "Connection reset by peer" not in str(error.stderr):
            raise
    shutil.rmtree(cwd / "perfscope-runs", ignore_errors=True)
    return captured("--capture", "nsys", *arguments, cwd=cwd)


def recorded(folder: Path) -> Trace:
    (trace,) = load_path(folder / "perfscope-runs" / "latest").traces
    trace.check()
    return trace


def regions(trace: Trace) -> list[str]:
    kinds = trace.rows["slices"]["kind"] == int(SliceKind.ANNOTATION)
    return [name for name, wanted in zip(names(trace, "slices"), kinds.tolist(), strict=True) if wanted]


def test_steps_and_regions_of_a_loop_that_marks_its_steps(tmp_path: Path) -> None:
    done = by_nsys(write(tmp_path, STEPS), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    trace = recorded(tmp_path)
    (process,) = latest(tmp_path).processes
    assert passes(process)["timing"].steps == (2, 9)
    assert trace.rows["steps"]["number"].tolist() == [2, 3, 4, 5, 6, 7, 8]
    assert regions(trace).count("matmul") == 9
    assert min(trace.rows["steps"]["end_ns"] - trace.rows["steps"]["start_ns"]) > 10_000_000, "it sleeps 10 ms"


@pytest.mark.slow
def test_chosen_steps_are_recorded_alone(tmp_path: Path) -> None:
    done = by_nsys("--steps", "4:7", write(tmp_path, STEPS), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    trace = recorded(tmp_path)
    assert trace.rows["steps"]["number"].tolist() == [4, 5, 6]
    assert regions(trace).count("matmul") == 3


def test_a_workload_whose_optimizer_tells_its_steps_and_what_cannot_be_judged(tmp_path: Path) -> None:
    words = ("-m", "perfscope.workloads.ssm", "--size", "tiny", "--steps", "6")
    done = by_nsys(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loss") == 6
    trace = recorded(tmp_path)
    assert trace.rows["steps"]["number"].tolist() == [2, 3, 4, 5]
    assert "device_work" not in trace.recorded
    analysis = analyze([trace])
    assert analysis.findings() == ()
    abstained = {outcome.rule for outcome in analysis if outcome.status == "abstained"}
    assert abstained >= {"host_sync", "launch_bound", "small_kernels"}


def test_a_killed_program_keeps_the_steps_up_to_its_end(tmp_path: Path) -> None:
    program = STEPS + "    if turn == 6:\n        import os; os.kill(os.getpid(), 9)\n"
    done = by_nsys(write(tmp_path, program), cwd=tmp_path)
    assert done.returncode == 137
    steps = recorded(tmp_path).rows["steps"]["number"].tolist()
    assert steps in ([2, 3, 4], [2, 3, 4, 5], [2, 3, 4, 5, 6]), "the last events may die with the process"


def bare(folder: Path, program: str) -> Trace:
    """A recording by ``nsys`` alone around a program, exported as its user would."""
    tool = str(shutil.which("nsys"))
    script = [sys.executable, str(folder / write(folder, program))]
    quiet = ["--trace=nvtx,osrt", "--sample=none", "--cpuctxsw=none", f"--output={folder / 'report'}"]
    subprocess.run([tool, "profile", *quiet, *script], cwd=folder, env=environment(), check=True, capture_output=True)
    (report,) = folder.glob("*.nsys-rep")
    export = folder / "report.sqlite"
    subprocess.run([tool, "export", "--type=sqlite", f"--output={export}", report], check=True, capture_output=True)
    (trace,) = load_path(export).traces
    trace.check()
    return trace


UNFINISHED = "not counted as steps: ranges that were still open when the program or the recording ended (1)"


def test_under_nsys_alone_what_follows_the_last_step_is_no_step(tmp_path: Path) -> None:
    trace = bare(tmp_path, LOOP + "time.sleep(0.3)\n")
    took = trace.rows["steps"]["end_ns"] - trace.rows["steps"]["start_ns"]
    assert trace.rows["steps"]["number"].tolist() == [0, 1, 2, 3]
    assert max(took) < 300_000_000, "the sleep after the loop is in none of them"
    assert UNFINISHED in trace.source.notes
    assert "exit" in names(trace, "slices")


def test_under_nsys_alone_steps_of_a_with_statement_all_count(tmp_path: Path) -> None:
    program = LOOP.replace(
        "    time.sleep(0.01)\n    perfscope.step()", "    with perfscope.step():\n        time.sleep(0.01)"
    )
    trace = bare(tmp_path, program)
    assert trace.rows["steps"]["number"].tolist() == [0, 1, 2, 3, 4]
    assert UNFINISHED not in trace.source.notes
