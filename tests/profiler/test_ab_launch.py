"""Launches of an A/B with real processes: times without a profiler, and programs that fail, hang or stray."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from perfscope.model.documents.ab import Launch
from perfscope.model.errors import NotStartedError
from perfscope.profiler.ab.launch import TIMED_OUT, ArmFolder, launch_once
from perfscope.profiler.launch.program import Target
from tests.conftest import REPOSITORY
from tests.profiler.ab_programs import PROGRAM, sleeps
from tests.profiler.programs import LOOP


@pytest.fixture(autouse=True)
def _finds_perfscope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def launched(folder: Path, program: str, *arguments: str, **more: object) -> Launch:
    (folder / "train.py").write_text(program)
    (folder / "work.py").write_text(sleeps(0.001))
    place = ArmFolder(root=folder, folder=folder)
    held: dict[str, object] = {"arm": "base", "phase": "measure", "pair": 0, "slot": 0, "log": folder / "log", **more}
    return launch_once(Target(arguments=("train.py", *arguments)), place, **held)  # type: ignore[arg-type]


def test_a_program_without_a_framework_is_timed_by_its_own_marks(tmp_path: Path) -> None:
    launch = launched(tmp_path, PROGRAM, "12")
    assert launch.problem is None
    assert (launch.step_source, launch.code) == ("perfscope.step", 0)
    assert launch.steps_seen == 12
    assert len(launch.times_ns()) == 10, "the first two are warm-up"
    assert min(launch.times_ns()) > 1e6, "it sleeps a millisecond"
    assert launch.windows_ns == ()
    assert launch.exact == {"steps": 12}


@pytest.mark.torch
def test_steps_of_torch_are_found_and_nothing_is_recorded(tmp_path: Path) -> None:
    launch = launched(tmp_path, LOOP + "work(12)\nprint(torch.autograd.profiler._is_profiler_enabled)")
    assert launch.problem is None
    assert (launch.step_source, launch.steps_seen, len(launch.step_ns)) == ("optimizer.step", 12, 10)
    assert launch.exact["torch_compilations"] == 0
    assert (tmp_path / "log").read_text() == "False\n"
    assert {path.name for path in tmp_path.iterdir()} <= {"train.py", "work.py", "log", "__pycache__"}


@pytest.mark.torch
def test_marks_that_are_imported_before_torch_are_heard_all_the_same(tmp_path: Path) -> None:
    program = "import perfscope\nperfscope.step\n" + LOOP + "work(12, perfscope.step)"
    launch = launched(tmp_path, program)
    assert (launch.problem, launch.step_source) == (None, "perfscope.step")


@pytest.mark.jax
def test_what_jax_queues_is_waited_for_in_windows(tmp_path: Path) -> None:
    program = """
import jax, jax.numpy as jnp
import perfscope

@jax.jit
def turn(x):
    return jnp.tanh(x @ x)

x = jnp.ones((64, 64))
for number in range(40):
    x = turn(x)
    perfscope.step()
"""
    launch = launched(tmp_path, program)
    assert launch.problem is None
    assert launch.window_steps == 8
    assert len(launch.windows_ns) >= 3
    assert launch.times_ns() == tuple(window / 8 for window in launch.windows_ns)


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("print('loading')\nraise ValueError('no such tokenizer')", "exit code 1: .*ValueError: no such tokenizer"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL: it printed nothing"),
        ("pass", "no steps were found in it: call perfscope.step()"),
        (PROGRAM.replace("12", "2"), "no steps were found|only 2 steps"),
    ],
)
def test_what_went_wrong_is_said(tmp_path: Path, program: str, said: str) -> None:
    import re

    launch = launched(tmp_path, program)
    assert launch.problem is not None
    assert re.search(said.replace("()", r"\(\)"), launch.problem), launch.problem


def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "open('child', 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    launch = launched(tmp_path, program, timeout_s=3.0)
    assert launch.code == TIMED_OUT
    assert launch.problem == "it ran past 3 s and was ended (--timeout)"
    child = int((tmp_path / "child").read_text())
    for _ in range(100):
        if not Path(f"/proc/{child}").exists() or " Z " in Path(f"/proc/{child}/stat").read_text():
            break
        time.sleep(0.05)
    else:
        pytest.fail("the child outlived its launch")


def test_code_from_the_checkout_is_noticed_and_that_of_the_arm_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout, arm = tmp_path / "checkout", tmp_path / "arm"
    for folder in (checkout, arm):
        (folder / "src").mkdir(parents=True)
        (folder / "src" / "library.py").write_text("")
    (checkout / "only_here.py").write_text("")
    program = PROGRAM + "\nimport library\nprint(library.__file__)\n"
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(checkout / "src"), str(REPOSITORY))))
    launch = launched(arm, program, checkout=checkout)
    assert (launch.problem, launch.strays) == (None, ())
    assert (arm / "log").read_text().strip() == str(arm / "src" / "library.py")
    launch = launched(arm, program + f"sys.path.append({str(checkout)!r})\nimport only_here\n", checkout=checkout)
    assert launch.strays == ("only_here",)


def test_what_it_imported_of_the_files_that_changed_is_counted(tmp_path: Path) -> None:
    for changed, count in (({"work.py", "other.py"}, 1), ({"work.py", "train.py"}, 2), ({"other.py"}, 0)):
        assert launched(tmp_path, PROGRAM, changed=frozenset(changed)).changed_loaded == count
    assert launched(tmp_path, PROGRAM).changed_loaded is None


def test_a_command_that_is_not_there_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(NotStartedError, match="no-such-tool: no such command"):
        launch_once(
            Target(arguments=("no-such-tool",), command=True), ArmFolder(root=tmp_path, folder=tmp_path),
            arm="base", phase="warm", pair=0, slot=0, log=tmp_path / "log",
        )  # fmt: skip


def test_a_command_is_followed_into_the_python_it_starts(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "work.py").write_text(sleeps(0.001))
    launch = launch_once(
        Target(arguments=("sh", "-c", f"{sys.executable} train.py 9"), command=True),
        ArmFolder(root=tmp_path, folder=tmp_path),
        arm="base", phase="warm", pair=0, slot=0, log=tmp_path / "log",
    )  # fmt: skip
    assert (launch.problem, launch.steps_seen) == (None, 9)
