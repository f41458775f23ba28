"""One launch of an A/B under the captures of `perfscope run`: what it did, not how long. Its run folder is kept."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from perfscope.model.documents import run_folders
from perfscope.model.documents.ab import Arm, Launch
from perfscope.model.errors import DataError
from perfscope.profiler.ab import record_child
from perfscope.profiler.ab.launch import ArmFolder, ended_badly, python_path, run_and_wait
from perfscope.profiler.launch.program import Target

TIMING = ("timing",)
"""The pass without which there is nothing to compare."""
SLOWER = 4.0
"""What a launch under capture may take of ``--timeout``: it loads a profiler, and writes its files at the end."""


def profile_once(
    target: Target,
    place: ArmFolder,
    *,
    arm: Arm,
    pair: int,
    slot: int,
    root: Path,
    log: Path,
    timeout_s: float | None = None,
    checkout: Path | None = None,
    step_annotation: str | None = None,
) -> Launch:
    """Run ``target`` in ``place`` under capture, into a new run folder below ``root``; its output goes to ``log``.

    ``Launch.run`` is the folder's name; whatever is missing is in ``Launch.problem``. ``NotStartedError`` only
    if Python itself cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="perfscope-launch-") as scratch:
        answer = Path(scratch) / "run"
        order = record_child.Order(
            arguments=target.arguments,
            module=target.module,
            command=target.command,
            root=str(root.resolve()),
            name=f"{arm}-{pair + 1}",
            python_path=python_path(place, checkout),
            answer=str(answer),
            step_annotation=step_annotation,
        )
        began, clock = time.time(), time.monotonic()
        limit = None if timeout_s is None else SLOWER * timeout_s
        line = [sys.executable, "-P", "-m", record_child.__name__, order.dump()]
        code = run_and_wait(line, place, {"PYTHONPATH": _our_path()}, log, limit)
        seconds = time.monotonic() - clock
        directory = root / answer.read_text(encoding="utf-8") if answer.exists() else None
    launch = Launch(
        arm=arm,
        phase="profile",
        pair=pair,
        slot=slot,
        began_unix_s=round(began, 3),
        seconds=round(seconds, 3),
        code=code,
        run=None if directory is None else directory.name,
    )
    problem = ended_badly(launch, log, limit) or _why_nothing(directory)
    return launch if problem is None else replace(launch, problem=problem)


def _our_path() -> str:
    """What we import from ourselves, with the place of this package in front."""
    ours = str(Path(run_folders.__file__).resolve().parents[3])
    return os.pathsep.join(filter(None, (ours, os.environ.get("PYTHONPATH"))))


def _why_nothing(directory: Path | None) -> str | None:
    """Why a program that ended well left nothing to compare, or ``None``."""
    if directory is None:
        return "its run was not kept"
    try:
        run = run_folders.read(directory)
    except DataError as error:
        return str(error).removeprefix(f"{directory}/")
    if any(one.pass_name in TIMING for one in run.artifacts(directory)):
        return None
    reasons = [one.reason for process in run.processes for one in process.captures if one.reason is not None]
    return next(iter((*reasons, *run.notes)), "nothing was captured")
