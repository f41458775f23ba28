"""Launches of an A/B under capture, and builds in worktrees, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfscope.model.documents import run_folders
from perfscope.model.documents.ab import Launch
from perfscope.model.errors import DataError
from perfscope.profiler.ab.launch import ArmFolder, run_build
from perfscope.profiler.ab.profiled_launch import profile_once
from perfscope.profiler.launch.program import Target
from tests.conftest import REPOSITORY
from tests.profiler.ab_programs import PROGRAM, sleeps
from tests.profiler.programs import LOOP


@pytest.fixture(autouse=True)
def _finds_perfscope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def profiled(folder: Path, program: str, **more: object) -> Launch:
    (folder / "arm").mkdir()
    (folder / "arm" / "train.py").write_text(program)
    (folder / "arm" / "work.py").write_text(sleeps(0.001))
    held: dict[str, object] = {
        "arm": "head", "pair": 0, "slot": 1, "root": folder / "runs", "log": folder / "log", **more,
    }  # fmt: skip
    place = ArmFolder(root=folder / "arm", folder=folder / "arm")
    return profile_once(Target(arguments=("train.py",)), place, **held)  # type: ignore[arg-type]


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
        (PROGRAM, "no Python process of the program imported torch or jax"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL"),
    ],
)
def test_what_gave_no_profile_says_why(tmp_path: Path, program: str, said: str) -> None:
    launch = profiled(tmp_path, program)
    assert launch.problem is not None
    assert said in launch.problem


def test_one_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfscope.profiler.ab.profiled_launch.SLOWER", 1.0)
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
    run_build(command, places, logs=tmp_path, checkout=tmp_path / "checkout", tell=told.append)  # type: ignore[arg-type]
    assert told == ["building base", "building head"]
    for arm, place in places.items():
        assert (place.folder / "out").read_text() == f"built in {place.folder}\n"
        assert (tmp_path / f"build-{arm}.log").read_text() == "loud\n"
        assert (place.folder / "path").read_text().split(os.pathsep)[0] == str(place.root)
    with pytest.raises(DataError, match=r"build-head.log: --build failed in head with exit code 3: no compiler"):
        run_build("case $PWD in */head/*) echo no compiler; exit 3;; esac", places, logs=tmp_path,
              checkout=tmp_path, tell=told.append)  # type: ignore[arg-type]  # fmt: skip


def test_who_is_ended_while_it_profiles_leaves_nothing_running(tmp_path: Path) -> None:
    """The program has a process group of its own, two processes below us: the signal reaches it all the same."""
    (tmp_path / "train.py").write_text(
        "import os, time\nopen('pid', 'w').write(str(os.getpid()))\nos.rename('pid', 'running')\ntime.sleep(600)\n"
    )
    script = (
        "import signal, sys\nfrom pathlib import Path\n"
        "from perfscope.profiler.ab.launch import Place\nfrom perfscope.profiler.ab.profiled_launch import profile_once\n"
        "from perfscope.profiler.ab.worktrees import ended_by_signals\nfrom perfscope.profiler.launch.program import Target\n"
        "here = Path.cwd()\n"
        "with ended_by_signals():\n"
        "    profile_once(Target(arguments=('train.py',)), Place(root=here, folder=here), arm='base', pair=0, slot=0,\n"
        "                 root=here / 'runs', log=here / 'log')\n"
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
    assert "EndedError" in said
    state = Path(f"/proc/{program}/stat")
    assert not state.exists() or " Z " in state.read_text()
    (kept,) = (path for path in (tmp_path / "runs").iterdir() if not path.is_symlink())
    assert run_folders.read(kept).state == "killed"
