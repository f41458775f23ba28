"""Callbacks of trainers, tried with the real packages: with and without, under plain python and ``perfscope run``."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Process, Run
from tests.session.programs import environment

SECONDS = 300


def require(*packages: str) -> None:
    """Skip where a package is missing."""
    for name in packages:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``python WORDS``, which finds the packages of this one, offline."""
    env = environment(HF_HUB_OFFLINE="1", CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu", **variables)
    path = os.pathsep.join(filter(None, (env["PYTHONPATH"], os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**env, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def only_run(folder: Path) -> tuple[Run, Process]:
    """The one run below ``folder``, and its process."""
    (directory,) = run_folders.directories(folder / "perfscope-runs")
    made = run_folders.read(directory)
    (process,) = made.processes
    return made, process


def judge(program: str, callback: str, steps: int, tmp_path: Path, **variables: str) -> None:
    """Run ``program``, which reads the callbacks from ``callbacks()``, in three ways: the callback makes a run of
    ``steps`` steps, the program prints the same, and under ``perfscope run`` there is no second run.
    """
    ends = {"plain": "[]", "alone": f"[{callback}(quiet=True)]"}
    for name, callbacks in ends.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(
            f"import perfscope\ndef callbacks():\n    return {callbacks}\n{program}"
        )
    (tmp_path / "under").mkdir()
    (tmp_path / "under" / "train.py").write_text((tmp_path / "alone" / "train.py").read_text())
    plain = run(tmp_path / "plain", "train.py", **variables)
    assert plain.returncode == 0, plain.stderr[-2000:]
    alone = run(tmp_path / "alone", "train.py", **variables)
    under = run(tmp_path / "under", "-m", "perfscope", "run", "-q", "--no-report", "train.py", **variables)
    for name, done in (("alone", alone), ("under", under)):
        assert done.returncode == 0, done.stderr[-2000:]
        assert done.stdout == plain.stdout
        made, process = only_run(tmp_path / name)
        assert (made.state, made.exit_code) == ("finished", 0)
        assert (process.step_source, process.steps_seen) == ("perfscope.step", steps), name
        (timing,) = [capture for capture in process.captures if capture.pass_name == "timing"]
        assert timing.state == "recorded", timing.reason
