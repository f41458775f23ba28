"""Launches of an A/B with real processes: times without a profiler, and programs that fail, hang or stray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from perfscope.model.documents import run_folders
from perfscope.model.documents.ab import Launch
from perfscope.model.errors import DataError, NotStartedError
from perfscope.profiler.ab.launch import (
    FOLDER,
    TIMED_OUT,
    UNLOCKED_S,
    ArmFolder,
    launch_once,
    profile_once,
    run_build,
    scratch_folder,
)
from perfscope.profiler.launch.program import Target
from tests import warm
from tests.ab.repositories import PROGRAM, sleeps
from tests.conftest import REPOSITORY
from tests.session.programs import LOOP


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


def test_folders_of_killed_launches_are_removed_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, running, new, other = (tmp_path / f"{name}1" for name in (FOLDER, f"{FOLDER}a", f"{FOLDER}b", "other-"))
    old = time.time() - UNLOCKED_S - 10
    for folder in (left, running, new, other):
        folder.mkdir()
        (folder / "times.json").write_text("{}")
    (tmp_path / f"{FOLDER}link").symlink_to(other)
    with run_folders.alive(running):
        for folder in (left, running, other):
            os.utime(folder, (old, old))
        with scratch_folder() as made:
            assert run_folders.is_alive(made)
            assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
                [running.name, new.name, other.name, made.name, f"{FOLDER}link"]
            )
    assert not made.exists()
    assert (other / "times.json").exists()


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
def test_steps_of_torch_are_found_and_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warm.use_for_launches(monkeypatch)
    launch = launched(tmp_path, LOOP + "work(12)\nprint(torch.autograd.profiler._is_profiler_enabled)")
    assert launch.problem is None
    assert (launch.step_source, launch.steps_seen, len(launch.step_ns)) == ("optimizer.step", 12, 10)
    assert launch.exact["torch_compilations"] == 0
    assert (tmp_path / "log").read_text() == "False\n"
    assert {path.name for path in tmp_path.iterdir()} <= {"train.py", "work.py", "log", "__pycache__"}


@pytest.mark.slow
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


@pytest.mark.slow
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


def profiled(folder: Path, program: str, **more: object) -> Launch:
    (folder / "arm").mkdir()
    (folder / "arm" / "train.py").write_text(program)
    (folder / "arm" / "work.py").write_text(sleeps(0.001))
    held: dict[str, object] = {
        "arm": "head", "pair": 0, "slot": 1, "root": folder / "runs", "log": folder / "log", **more,
    }  # fmt: skip
    place = ArmFolder(root=folder / "arm", folder=folder / "arm")
    return profile_once(Target(arguments=("train.py",)), place, **held)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.torch
def test_a_run_is_kept_as_perfscope_run_keeps_it(tmp_path: Path) -> None:
    launch = profiled(tmp_path, LOOP + "work(16)\nprint('done')")
    assert (launch.problem, launch.phase, launch.code) == (None, "profile", 0)
    assert launch.run is not None
    assert "head-1" in launch.run
    run = run_folders.read(tmp_path / "runs" / launch.run)
    assert run.state == "finished"
    assert {one.pass_name for one in run.artifacts(tmp_path / "runs" / launch.run)} >= {"timing", "structure", "detail"}
    assert (tmp_path / "log").read_text() == "done\n"
    assert not [path for path in (tmp_path / "arm").iterdir() if path.name == "perfscope-runs"]


@pytest.mark.slow
@pytest.mark.torch
def test_packages_of_the_arm_do_not_reach_what_profiles_it(tmp_path: Path) -> None:
    """A commit of msgspec (or json) in the worktree is the program's; ours comes from our own path."""
    launch = profiled(tmp_path, "import shutil\nassert shutil.planted\n" + LOOP + "work(16)")
    assert launch.problem is not None
    assert "has no attribute 'planted'" in launch.problem
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "arm").mkdir()
    folder = tmp_path / "again"
    (folder / "arm" / "msgspec.py").write_text("raise RuntimeError('the one of the arm')")
    (folder / "arm" / "train.py").write_text(LOOP + "work(16)")
    place = ArmFolder(root=folder / "arm", folder=folder / "arm")
    launch = profile_once(
        Target(arguments=("train.py",)), place, arm="base", pair=0, slot=0, root=folder / "runs", log=folder / "log"
    )
    assert launch.problem is None, launch.problem


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise ValueError('no such tokenizer')", "exit code 1: "),
        (PROGRAM, "imported torch or jax"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    ],
)
def test_what_gave_no_profile_says_why(tmp_path: Path, program: str, said: str) -> None:
    launch = profiled(tmp_path, program)
    assert launch.problem is not None
    assert said in launch.problem


@pytest.mark.slow
def test_one_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfscope.profiler.ab.launch.SLOWER", 1.0)
    launch = profiled(tmp_path, "import time\nopen('here', 'w').close()\ntime.sleep(600)", timeout_s=4.0)
    assert launch.problem == "it ran past 4 s and was ended (--timeout)"
    assert (tmp_path / "arm" / "here").exists()


def test_a_build_runs_once_in_each_arm_and_its_failure_is_told(tmp_path: Path) -> None:
    places = {}
    for arm in ("base", "head"):
        (tmp_path / arm / "below").mkdir(parents=True)
        places[arm] = ArmFolder(root=tmp_path / arm, folder=tmp_path / arm / "below")
    told: list[str] = []
    command = 'echo built in $PWD >> out && echo loud && printf %s "$PYTHONPATH" > path'
    run_build(command, places, logs=tmp_path, checkout=tmp_path / "checkout", announce=told.append)  # type: ignore[arg-type]
    assert told == ["building base", "building head"]
    for arm, place in places.items():
        assert (place.folder / "out").read_text() == f"built in {place.folder}\n"
        assert (tmp_path / f"build-{arm}.log").read_text() == "loud\n"
        assert (place.folder / "path").read_text().split(os.pathsep)[0] == str(place.root)
    with pytest.raises(DataError, match=r"build-head.log: --build failed in head with exit code 3: no compiler"):
        run_build("case $PWD in */head/*) echo no compiler; exit 3;; esac", places, logs=tmp_path,
              checkout=tmp_path, announce=told.append)  # type: ignore[arg-type]  # fmt: skip


def test_who_is_ended_while_it_profiles_leaves_nothing_running(tmp_path: Path) -> None:
    """The program is in a separate process group, two processes below this one: the signal still reaches it."""
    (tmp_path / "train.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nos.rename('pid', 'running')\ntime.sleep(600)\n"
    )
    script = (
        "import signal, sys\nfrom pathlib import Path\n"
        "from perfscope.profiler.ab.launch import ArmFolder\n"
        "from perfscope.profiler.ab.launch import profile_once\n"
        "from perfscope.profiler.ab.worktrees import terminated_by_signals\n"
        "from perfscope.profiler.launch.program import Target\n"
        "here = Path.cwd()\n"
        "with terminated_by_signals():\n"
        "    profile_once(Target(arguments=('train.py',)), ArmFolder(root=here, folder=here),\n"
        "                 arm='base', pair=0, slot=0, root=here / 'runs', log=here / 'log')\n"
    )
    ours = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 60
        while not (tmp_path / "running").exists() and time.monotonic() < until:
            time.sleep(0.05)
        program = int((tmp_path / "running").read_text())
        ours.send_signal(signal.SIGTERM)
        _, said = ours.communicate(timeout=60)
    finally:
        ours.kill()
        ours.wait()
    assert "TerminatedError" in said
    state = Path(f"/proc/{program}/stat")
    assert not state.exists() or " Z " in state.read_text()
    (kept,) = (path for path in (tmp_path / "runs").iterdir() if not path.is_symlink())
    assert run_folders.read(kept).state == "killed"
