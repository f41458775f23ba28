"""``perfscope.profile`` and ``trace_handler``: captures that a program makes of itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.model.documents import run_folders
from tests import warm
from tests.session.programs import captured, environment

pytestmark = pytest.mark.torch

LOOP = """
import json, sys
import torch
import perfscope

parameter = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], lr=0.1)

def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        parameter.square().sum().backward()
        optimizer.step()
    return float(parameter.detach()[0])
"""


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    program = folder / "train.py"
    program.write_text(LOOP + code)
    return warm.run(
        [sys.executable, str(program)], cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )


def test_a_block_is_a_run_and_the_program_goes_on_as_without(tmp_path: Path) -> None:
    plain = run(tmp_path, "print(train(5), train(14), train(3))\n")
    done = run(
        tmp_path,
        "first = train(5)\nwith perfscope.profile(name='inner') as profile:\n    second = train(14)\n"
        "print(first, second, train(3))\n"
        "analysis = profile.analysis()\nprint(len(analysis.outcomes) > 40, file=sys.stderr)\n",
    )
    assert done.stdout == plain.stdout
    assert done.stderr.splitlines()[-1] == "True", done.stderr
    (folder,) = (tmp_path / "perfscope-runs").glob("*-inner-*")
    (process,) = run_folders.read(folder).processes
    assert (process.step_source, process.steps_seen) == ("optimizer.step", 14)
    assert run_folders.read(folder).state == "finished"


def test_each_call_of_a_decorated_function_is_a_run(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "@perfscope.profile(level='light', quiet=True)\ndef loop(steps):\n    return train(steps)\n"
        "loop(14)\nloop(15)\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    seen = [
        run_folders.read(folder).processes[0].steps_seen for folder in sorted((tmp_path / "perfscope-runs").glob("2*"))
    ]
    assert sorted(seen) == [14, 15]


def test_an_error_ends_the_run_and_reaches_the_program(tmp_path: Path) -> None:
    done = run(tmp_path, "with perfscope.profile(quiet=True):\n    train(14)\n    raise KeyError('mine')\n")
    assert done.returncode == 1
    assert "KeyError: 'mine'" in done.stderr
    (folder,) = (tmp_path / "perfscope-runs").glob("2*")
    assert run_folders.read(folder).exit_code == 1


def test_where_no_run_can_be_made_the_program_goes_on(tmp_path: Path) -> None:
    (tmp_path / "perfscope-runs").write_text("")
    done = run(tmp_path, "with perfscope.profile() as profile:\n    print(train(2))\nprint(profile.analysis())\n")
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["None"])
    assert done.stderr == "perfscope: nothing is captured: perfscope-runs: no run directory can be made: File exists\n"


def test_a_block_that_recorded_nothing_names_no_run_to_analyze(tmp_path: Path) -> None:
    done = run(tmp_path, "with perfscope.profile():\n    print(train(0))\n")
    assert (done.returncode, done.stdout) == (0, "1.0\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith("perfscope: nothing was captured: no steps were found")


def test_without_a_framework_the_program_goes_on(tmp_path: Path) -> None:
    code = "import perfscope\nwith perfscope.profile():\n    print(1)\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert done.stderr == ("perfscope: nothing is captured: import torch or jax before perfscope.profile() begins\n")


def test_an_optimizer_whose_step_a_scheduler_holds_is_seen(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)\ntrain(2)\n"
        "before = (optimizer.step, type(optimizer).step)\n"
        "with perfscope.profile(quiet=True):\n    train(14)\n"
        "print(before == (optimizer.step, type(optimizer).step))\n",
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    (folder,) = (tmp_path / "perfscope-runs").glob("2*")
    assert run_folders.read(folder).processes[0].steps_seen == 14


@pytest.mark.slow
def test_under_perfscope_run_the_block_is_nothing(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(LOOP + "with perfscope.profile() as profile:\n    train(14)\nprint(profile.directory)\n")
    done = captured(program, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
    assert len(list((tmp_path / "perfscope-runs").glob("2*"))) == 1


def test_the_handler_of_an_own_profiler_writes_what_analyze_reads(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        "schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)\n"
        "with torch.profiler.profile(schedule=schedule, on_trace_ready=perfscope.trace_handler()) as profiler:\n"
        "    for _ in range(9):\n        train(1)\n        profiler.step()\n",
    )
    assert done.returncode == 0, done.stderr
    files = sorted((tmp_path / "perfscope-traces").rglob("*.json.gz"))
    assert [str(file.relative_to(tmp_path / "perfscope-traces")) for file in files] == [
        f"cycle{number}/rank00000.pt.trace.json.gz" for number in (0, 1)
    ]
    analyzed = subprocess.run(
        [sys.executable, "-m", "perfscope", "analyze", "--format", "json", str(files[0].parent)],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(analyzed.stdout)["steps"]
