"""Real small runs of ours, as if they had been made at other commits, times and machines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY

PLAIN, ITEM = "cpu-attention-sdpa", "cpu-attention-sdpa-item"
MACHINE = {"system": "Linux", "release": "1", "machine": "x86_64", "cpu": "Test CPU"}


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
