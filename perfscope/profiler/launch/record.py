"""Runs a program under capture and records the result: all of ``perfscope run`` except its report."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import signal
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from perfscope.model import environment
from perfscope.model.capture import WAIT_S, CaptureOptions, Message
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import ATTACHED_FILE, FAILURES_FILE, Process, Run, RunState, failure_of, load_run
from perfscope.model.errors import DataError, NotStartedError, see
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize, scrub_command
from perfscope.profiler.ab.machine import MachineCounters, Sources, counter_rates, read_counters
from perfscope.profiler.bootstrap.sitecustomize import ERROR_FILE
from perfscope.profiler.launch.program import Ended, Target, launch
from perfscope.profiler.session.passes import first_step
from perfscope.profiler.session.ranks import MOST_RANKS, Task, task_from_environment

if TYPE_CHECKING:
    from perfscope.profiler.nsys.command import NsysRun

# Several ``perfscope run`` of one job share a run directory, and agree on it without communication.
#
# All come to the same name, as `ranks.task_of` reads it from the environment. Each takes its number in the
# directory of that name by creating a file that must not exist. Where the number is taken, or everything in the
# directory ended long ago, it is an earlier job's: the next name is tried, with the suffix ``-2``, by every task
# alike. Each task writes a separate manifest, so that it neither waits for another nor overwrites it.
#
# A task whose number is unknown (started by hand, with a ``--run-id``) takes the next free number in a directory
# where others still run.


LATE_S = 120.0
"""A task that starts this long after all others of the directory ended is another job's."""
POLL_S = 0.1
MOST_JOBS = 10_000
"""Jobs of one name."""


class JobDirectory(Struct, frozen=True, kw_only=True):
    """Directory and number of a task. ``earlier``: directories of that name belong to other jobs."""

    directory: Path
    number: int
    earlier: bool


def join(root: Path, task: Task) -> JobDirectory:
    """The run directory of ``task``'s job below ``root``, made if it is the first to come.

    ``NotStartedError`` if it cannot be made.
    """
    assert task.key is not None
    label = run_folders.directory_label(task.key)
    try:
        root.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, MOST_JOBS):
            directory = root / (label if attempt == 1 else f"{label}-{attempt}")
            try:
                directory.mkdir()
                run_folders.point_latest(root, directory.name)
            except FileExistsError:
                if not directory.is_dir() or _is_over(directory, LATE_S if task.given else 0.0):
                    continue
            for number in (task.number,) if task.given else range(MOST_RANKS):
                if _take(directory, number):
                    return JobDirectory(directory=directory, number=number, earlier=attempt > 1)
    except OSError as error:
        raise NotStartedError(f"{root}: no run directory can be made: {error.strerror or error}") from error
    raise NotStartedError(f"{root}: {MOST_JOBS} runs are named {label}")


def is_lead_task(directory: Path, task: int) -> bool:
    """Whether ``task`` is the first of those that write here; with a local directory that need not be task 0."""
    manifests = run_folders.manifests(directory)
    return not manifests or task <= run_folders.task_of_file(manifests[0])


def await_others(directory: Path, task: Task, seconds: float) -> None:
    """Wait at most ``seconds`` until the other tasks have ended; missing tasks are waited for, too."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        tasks = [run_folders.task_of_file(file) for file in run_folders.manifests(directory)]
        if len(tasks) >= (task.count or 0) and not any(_runs(directory, number) for number in tasks):
            return
        time.sleep(POLL_S)


def _runs(directory: Path, number: int) -> bool:
    try:
        ended = load_run(directory / run_folders.manifest_name(number)).state != "running"
    except DataError:  # being written on a file system that cannot replace in one step
        ended = False
    return not ended and run_folders.liveness(directory, number) is not False


def _take(directory: Path, number: int) -> bool:
    try:
        (directory / run_folders.alive_name(number)).open("x").close()
    except FileExistsError:
        return False
    return True


def _is_over(directory: Path, late_s: float) -> bool:
    """Whether the directory is an earlier job's: no process runs it, and none has for ``late_s`` seconds."""
    manifests = run_folders.manifests(directory)
    newest = max(file.stat().st_mtime for file in (manifests or [directory]))
    if time.time() - newest < (late_s if manifests else LATE_S):
        return False
    return not any(_runs(directory, run_folders.task_of_file(file)) for file in manifests)


LOAD = ("others_share", "steal_share")
"""Rates of the machine's counters that a manifest has."""


class Recorded(Struct, frozen=True, kw_only=True):
    """A run that ended. ``code``: the program's exit code, as a shell gives it."""

    directory: Path
    run: Run
    code: int
    task: Task = field(default_factory=Task)
    leads: bool = True
    """Whether this task reports for the run: it is the first of those that write into the directory."""
    earlier: bool = False
    """Whether runs of other jobs had the requested name."""
    lost: str | None = None
    """Reason why the run's files could not be written or read, in one line; ``None`` if they were."""


NOTEBOOK = ("-m", "nbconvert")
"""How the command of a notebook begins. Its kernel has the steps, as expected."""


def record(
    target: Target,
    options: CaptureOptions,
    *,
    root: Path,
    name: str | None = None,
    follow: bool = False,
    run_id: str | None = None,
    wait_s: float = WAIT_S,
) -> Recorded:
    """Run ``target`` under capture, into a new run directory below ``root``, or the one of the job it is a task of.

    ``follow``: Python processes that it starts capture too (always for a command). ``run_id``: name of the run for all
    tasks of the job, if their launcher does not name the job. The first task waits for the others
    for up to ``wait_s`` seconds if its own program ended well.
    ``NotStartedError`` if the program or the run directory cannot be made; then there is no run.
    """
    target.command_line()  # a missing program fails here, before a run directory exists
    nsys = None if options.capture is None else _nsys(options)
    task, joined = task_of_run(root, run_id)
    directory = run_folders.create(root, name or target.name()) if joined is None else joined.directory
    run = begun(target, options, directory, name or target.name(), task)
    write_first(directory, run)
    recording = None if nsys is None else nsys.place(directory, run.task)
    follow = (follow or target.command) and not options.alone
    message = message_for(options, directory, follow=follow, recording=recording)
    ended: Ended | None = None
    lost, leads = None, True
    try:
        with run_folders.alive(directory, run.task):
            before = read_counters(Sources())
            ended = launch(target if nsys is None else nsys.around(target), message)
            run = replace(run, machine_load=_load_since(before) if joined is None else {})
            if nsys is not None:
                ended = nsys.program_result(ended)
                run = replace(run, notes=nsys.collect())
            leads = is_lead_task(directory, run.task)
            done = ended_as(run, ended, directory, options, leads=leads)
            run_folders.write(directory, done)
        if joined is not None and task.number == 0 and ended.code == 0:
            # A failed program's code is returned at once: the launcher then ends the others.
            with contextlib.suppress(KeyboardInterrupt):
                await_others(directory, task, wait_s)
                run_folders.write(directory, ended_as(run, ended, directory, options, leads=leads))
        if joined is not None:
            done = run_folders.read(directory)
    except (OSError, DataError) as error:
        if ended is None:
            raise NotStartedError(f"{directory}: the run cannot be begun: {error}") from error
        done, lost = run, _why_lost(error)
    return Recorded(
        directory=directory,
        run=done,
        code=ended.code,
        task=task,
        leads=leads,
        earlier=joined is not None and joined.earlier,
        lost=lost,
    )


def task_of_run(root: Path, run_id: str | None) -> tuple[Task, JobDirectory | None]:
    """Which task of which job this process is, and the run folder of the job if it has a key."""
    task = task_from_environment(os.environ, run_id)
    joined = None if task.key is None else join(root, task)
    return task if joined is None else replace(task, number=joined.number), joined


def _why_lost(error: OSError | DataError) -> str:
    cause = str(error.strerror or error) if isinstance(error, OSError) else str(error)
    return f"the run could not be kept: {cause.lower()}"


def _load_since(before: MachineCounters) -> dict[str, float]:
    rates = counter_rates(before, read_counters(Sources()))
    return {name: round(rates[name], 4) for name in LOAD if name in rates}


def message_for(options: CaptureOptions, directory: Path, *, follow: bool, recording: str | None) -> Message:
    """The message to the processes of a run. ``recording``: as in `Message`."""
    return Message(
        directory=str(directory.resolve()),
        options=options,
        pythonpath=os.environ.get("PYTHONPATH"),
        follow=follow,
        recording=recording,
    )


def write_first(directory: Path, run: Run) -> None:
    """The manifest of a run that begins; without it there is no run, and the program is not started."""
    try:
        run_folders.write(directory, run)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise NotStartedError(f"{directory}: the run cannot be begun: {why}") from error


def _nsys(options: CaptureOptions) -> NsysRun:
    from perfscope.profiler.nsys.command import NsysRun

    return NsysRun(options)


def begun(target: Target, options: CaptureOptions, directory: Path, name: str, task: Task) -> Run:
    """The manifest of a run that begins, with the facts of this machine."""
    number = 0 if task.key is None else task.number
    gpus = environment.nvidia_gpus()
    script = None
    if not target.module and not target.command and target.arguments[0] != "-":
        script = os.path.relpath(target.arguments[0])
    command = ("-m", *target.arguments) if target.module else target.arguments
    return Run(
        id=directory.name,
        name=name,
        created_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        command=scrub_command(command),
        state="running",
        script=script,
        task=number,
        tasks=None if task.key is None else task.count,
        # A thousand tasks at once are hard on a shared file system, and all would write the same.
        git=environment.git_facts() if number == 0 else None,
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


def ended_as(run: Run, ended: Ended, directory: Path, options: CaptureOptions, *, leads: bool) -> Run:
    """The manifest of a task whose program ended. The task that ``leads`` reports facts of the whole run."""
    notes = list(run.notes)
    state: RunState = "finished"
    if ended.timed_out:
        notes.append(f"ended after {options.seconds:g} s (--for)")
    if ended.signal == signal.SIGINT or (ended.interrupted and ended.code != 0):
        state = "interrupted"
    elif ended.signal is not None:
        state = "killed"
    processes: tuple[Process, ...] = ()
    error = _error(directory) if ended.code else None
    failed = failure_of(state, ended.code, error)
    if state == "killed" and failed is not None:
        notes.append(failed)
    if leads:
        processes, damaged = run_folders.read_processes(directory)
        notes += damaged
        if own := tuple(process for process in processes if not process.child and process.step_source):
            processes = own  # steps of a process that the program started are another program's
        elif any(process.step_source for process in processes) and run.command[:2] != NOTEBOOK:
            notes.append("the steps are of processes that the program started; it has none itself")
        if not any(process.step_source for process in processes):
            logged = bool(processes) and options.capture is None
            why = _why_nothing(directory, options, logged=logged, failed=failed, timed_out=ended.timed_out)
            if options.capture is not None:
                why = why.replace("nothing was captured", "no steps are marked in the recording", 1)
            notes.append(why)
        failures = directory / FAILURES_FILE
        if failures.exists():
            notes += failures.read_text(errors="replace").splitlines()[:1]
    return replace(run, state=state, exit_code=ended.code, error=error, notes=tuple(notes), processes=processes)


def _error(directory: Path) -> str | None:
    """The exception that ended the first process that failed, in one line, as its bootstrap left it."""
    try:
        text = (directory / ERROR_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return sanitize(text, TEXT_LIMIT) or None


def discard_if_empty(recorded: Recorded) -> bool:
    """Remove the run of a program alone of which nothing was captured; whether it was.

    A job's is always kept, and so is one in which a process or another tool left an unusable file: the notes have
    the reason.
    """
    if recorded.task.key is not None or recorded.run.artifacts(recorded.directory):
        return False
    if any(file.is_file() and file.stat().st_size for file in recorded.directory.glob("*/**/*")):
        return False
    try:
        return run_folders.discard(recorded.directory)
    except OSError:  # the program's exit code counts, whatever becomes of the folder
        return False


def _why_nothing(directory: Path, options: CaptureOptions, *, logged: bool, failed: str | None, timed_out: bool) -> str:
    """Reason why no process captured a step, and advice.

    ``logged``: compilations of torch were logged; ``failed``: how the program ended, if not well; ``timed_out``:
    whether the time of ``--for`` ended it.
    """
    what = "nothing was captured but torch.compile's log" if logged else "nothing was captured"
    if failed is not None:
        return f"{what}: {failed}"
    if timed_out:
        within = f"in the {options.seconds:g} s of --for, which begin with the start of Python"
        if not (directory / ATTACHED_FILE).exists():
            return f"{what}: torch or jax was not imported {within}. Give it a longer time"
        return (
            f"{what}: no steps were found {within}. Give it a longer time, or call perfscope.step() at the end of the "
            "loop's body"
        )
    if not (directory / ATTACHED_FILE).exists():
        if options.alone:
            return (
                "nothing was captured: the first process did not import torch or jax, and --no-follow excludes the "
                f"processes that it starts{see('nothing was captured')}"
            )
        return (
            "nothing was captured: no Python process that perfscope follows imported torch or jax. With `perfscope "
            f"run --follow` every process that the program starts is followed{see('nothing was captured')}"
        )
    if options.step_annotation is not None:
        return f"{what}: no annotation named {options.step_annotation!r} was seen{see('no steps found')}"
    return (
        f"{what}: no steps were found; the first {first_step(options)} are never captured. Call perfscope.step() at "
        f"the end of the loop's body, or take the whole program with `perfscope run --whole`{see('no steps found')}"
    )
