"""Runs a program under capture and writes down what came of it: the whole of ``perfscope run`` but its report."""

from __future__ import annotations

import dataclasses
import os
import platform
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from perfscope.profiler import environment, store
from perfscope.profiler.errors import DataError
from perfscope.profiler.launch import Ended, Target, launch
from perfscope.profiler.observe import ATTACHED_FILE, FAILURES_FILE
from perfscope.profiler.options import CaptureOptions, Message
from perfscope.profiler.plan import first_step
from perfscope.profiler.run import Run, State


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A run that ended. ``code`` is what the program returned, as a shell gives it."""

    directory: Path
    run: Run
    code: int


def record(
    target: Target, options: CaptureOptions, *, root: Path, name: str | None = None, follow: bool = False
) -> Recorded:
    """Run ``target`` under capture, into a new run directory below ``root``.

    ``follow``: Python processes that it starts capture too (always for a command).
    ``NotStartedError`` if the program or the run directory cannot be made; then there is no run.
    """
    target.command_line()  # a program that is not there leaves no run behind
    directory = store.create(root, name or target.name())
    run = _begun(target, options, directory, name or target.name())
    store.write(directory, run)
    message = Message(
        directory=str(directory.resolve()),
        options=options,
        pythonpath=os.environ.get("PYTHONPATH"),
        follow=follow or target.command,
    )
    with store.alive(directory):
        ended = launch(target, message)
        run = _ended(run, ended, directory, options)
        store.write(directory, run)
    return Recorded(directory=directory, run=run, code=ended.code)


def _begun(target: Target, options: CaptureOptions, directory: Path, name: str) -> Run:
    gpus = environment.nvidia_gpus()
    script = None
    if not target.module and not target.command and target.arguments[0] != "-":
        script = os.path.relpath(target.arguments[0])
    command = ("-m", *target.arguments) if target.module else target.arguments
    return Run(
        id=directory.name,
        name=name,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=environment.redact(command),
        state="running",
        script=script,
        git=environment.git_facts(),
        python=platform.python_version(),
        platform=environment.platform_facts(),
        packages=environment.packages(),
        devices=tuple({"name": gpu.name} for gpu in gpus),
        driver=gpus[0].driver if gpus else None,
        clocks=tuple(gpu.clocks for gpu in gpus),
        options=_options(options),
    )


def _options(options: CaptureOptions) -> Mapping[str, object]:
    return {key: value for key, value in dataclasses.asdict(options).items() if key != "quiet"}


def _ended(run: Run, ended: Ended, directory: Path, options: CaptureOptions) -> Run:
    notes = []
    if ended.signal is not None and ended.signal != signal.SIGINT:
        notes.append(f"the program was killed by {signal.Signals(ended.signal).name}")
    try:
        processes = store.read_processes(directory)
    except DataError as error:
        processes = ()
        notes.append(f"what a process wrote of itself cannot be read: {error}")
    if not any(process.step_source for process in processes):
        notes.append(_why_nothing(directory, options, logged=bool(processes)))
    failures = directory / FAILURES_FILE
    if failures.exists():
        notes.append(failures.read_text(errors="replace").splitlines()[0])
    state: State = "finished"
    if ended.signal == signal.SIGINT or (ended.interrupted and ended.code != 0):
        state = "interrupted"
    elif ended.signal is not None:
        state = "killed"
    return replace(run, state=state, exit_code=ended.code, notes=tuple(notes), processes=processes)


def _why_nothing(directory: Path, options: CaptureOptions, *, logged: bool) -> str:
    """Why no process captured a step, and what to do about it. ``logged``: what torch compiled was logged."""
    if not (directory / ATTACHED_FILE).exists():
        return "nothing was captured: no Python process of the program imported torch or jax"
    what = "nothing was captured but torch.compile's log" if logged else "nothing was captured"
    if options.step_annotation is not None:
        return f"{what}: no annotation named {options.step_annotation!r} was seen"
    return (
        f"{what}: no steps were found (perfscope.step(), prof.step(), an annotation named like a step, "
        f"an optimizer's step, calls of a jitted function; {first_step(options)} go by before the first capture). "
        "Call perfscope.step() at the end of the loop's body, name its annotation with --step-annotation, or take the "
        "whole program with --whole"
    )
