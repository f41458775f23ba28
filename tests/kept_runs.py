"""Real small runs of ours, as if they had been made at other commits, times and machines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.session.test_environment import git

PLAIN, ITEM = "cpu-attention-sdpa", "cpu-attention-sdpa-item"
MACHINE = {"system": "Linux", "release": "1", "machine": "x86_64", "cpu": "Test CPU"}


def repository(folder: Path, monkeypatch: pytest.MonkeyPatch, commits: int) -> list[str]:
    """A repository in ``folder``, which becomes the current one, with so many empty commits, the oldest first."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PERFSCOPE_STORE", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))
    git(folder, "init", "-q", "-b", "main")
    made = []
    for number in range(commits):
        git(folder, "commit", "-q", "--allow-empty", "-m", str(number))
        made.append(git(folder, "rev-parse", "HEAD"))
    return made


def enter(template: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy ``template`` into ``folder``, which becomes the current one."""
    shutil.copytree(template, folder, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PERFSCOPE_STORE", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))


def put_run(
    folder: Path,
    number: int,
    *,
    fixture: str = PLAIN,
    commit: str | None = None,
    dirty: bool = False,
    step_ns: int | None = None,
    cpu: str = "Test CPU",
    **manifest: Any,
) -> Path:
    """Run ``number`` below ``folder``, a minute after the one before."""
    run = folder / f"20260101-{number // 60:02d}{number % 60:02d}00-train-{number:04x}"
    shutil.copytree(REPOSITORY / "fixtures" / fixture, run)
    raw = json.loads((run / "run.json").read_text())
    raw |= {
        "id": run.name,
        "name": "train",
        "command": ["train.py"],
        "created_utc": f"2026-01-01T{number // 60:02d}:{number % 60:02d}:00+00:00",
        "git": None if commit is None else {"commit": commit, "dirty": dirty},
        "platform": MACHINE | {"cpu": cpu},
        **manifest,
    }
    (run / "run.json").write_text(json.dumps(raw))
    if step_ns is not None:
        for file in run.glob("rank*/process.json"):
            process = json.loads(file.read_text()) | {"untraced_step_ns": [step_ns] * 4, "window_ns": None}
            file.write_text(json.dumps(process))
    return run
