"""One process launch of an A/B test: start the program in an arm's folder, collect its step times, end it.

It runs without a profiler. The session inside (`session.py`, ``times_only``) finds the steps as `perfscope run` does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.model.capture import VARIABLE, CaptureOptions, Message
from perfscope.model.documents import run_folders
from perfscope.model.documents.ab import Arm, Launch, Phase, RankTimes
from perfscope.model.documents.run import Process
from perfscope.model.errors import DataError, NotStartedError, see
from perfscope.profiler import bootstrap
from perfscope.profiler.ab import record_child
from perfscope.profiler.launch.program import Target, end_with_us, path_with_package
from perfscope.profiler.session import process_state

# Times of a launch of several ranks: a step lasts as long as on the slowest.

TIMED_OUT = 124
"""The exit code of ``timeout`` of coreutils."""
GRACE_S = 5.0
"""Seconds between SIGTERM and SIGKILL."""
LOG_LINES = 3
"""Most lines of the program's output that are quoted after a failure."""
MOST_LOG_BYTES = 64 << 10

COUNTERS = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "peak_bytes_in_use", "num_ooms")
"""Counters of the allocators that are independent of the program's speed."""

FRAMEWORKS = ("torch", "jax", "jaxlib")

SHELL = "/bin/sh"

TIMING = ("timing",)
"""The pass that is required for a comparison."""
SLOWER = 4.0
"""Multiple of ``--timeout`` for a launch under capture: it loads a profiler, and writes its files at the end."""


def merge_ranks(processes: Sequence[Process]) -> RankTimes:
    """Merge the times of the processes that had steps.

    Ranks of a job wait for each other in every step, so the n-th step (or window) takes as long as on the slowest. If
    they did not take the same steps, the rank with the slowest typical step represents all, with a remark. If the
    processes are not ranks of one job (started one after another), the first counts.
    """
    stepped = [process for process in processes if process.steps_seen]
    ranked = [process for process in stepped if (process.world_size or 1) > 1]
    if not stepped:
        return RankTimes()
    if len(ranked) < 2:
        remark = f"{len(stepped)} processes had steps: the times are of the first" if len(stepped) > 1 else None
        return _times_of((ranked or stepped)[0], remark=remark)
    counts = {
        (len(process.untraced_step_ns), len(process.windows_ns), process.window_steps, process.steps_seen)
        for process in ranked
    }
    if len(counts) > 1:
        slowest = max(ranked, key=_typical)
        taken = sorted({process.steps_seen for process in ranked})
        remark = (
            f"its {len(ranked)} ranks took {taken[0]} to {taken[-1]} steps, or were timed apart: rank "
            f"{slowest.rank}, the slowest, represents all"
        )
        return _times_of(slowest, ranks=len(ranked), remark=remark)
    return RankTimes(
        step_ns=tuple(map(max, zip(*(process.untraced_step_ns for process in ranked), strict=True))),
        windows_ns=tuple(map(max, zip(*(process.windows_ns for process in ranked), strict=True))),
        window_steps=ranked[0].window_steps,
        ranks=len(ranked),
    )


def _times_of(process: Process, *, ranks: int = 1, remark: str | None = None) -> RankTimes:
    return RankTimes(
        step_ns=process.untraced_step_ns,
        windows_ns=process.windows_ns,
        window_steps=process.window_steps,
        ranks=ranks,
        remark=remark,
    )


def _typical(process: Process) -> float:
    if process.windows_ns and process.window_steps:
        return statistics.median(process.windows_ns) / process.window_steps
    return statistics.median(process.untraced_step_ns) if process.untraced_step_ns else 0.0


class ArmFolder(Struct, frozen=True, kw_only=True):
    """The location of an arm.

    ``folder``: current directory of the program; ``root``: the top of its worktree, ``None`` if the program runs in
    place.
    """

    root: Path | None
    folder: Path


class Changes(Struct, frozen=True, kw_only=True):
    """Changes that a plug-in makes to the program in a launch."""

    companion: str
    """Class that works in the processes (`perfscope.profiler.session.recorders.Companion`)."""
    settings: Mapping[str, Any]
    """Settings of the companion, as JSON values."""
    read: Callable[[Path], tuple[Any, ...]]
    """Function that reads the companions' reports from the folder of the launch; it may raise ``DataError``."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of the program's environment."""


FOLDER = "perfscope-launch-"
"""Prefix of the folders of launches."""
UNLOCKED_S = 60.0
"""Age from which a folder without a lock is left over; a new folder is locked right after it was made."""


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a folder for one launch, locked while it is used, and remove it; also those of killed processes."""
    remove_left(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=FOLDER))
    try:
        with run_folders.alive(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left(parent: Path) -> None:
    """Remove the user's folders of launches in ``parent`` whose process was killed."""
    for folder in parent.glob(f"{FOLDER}*"):
        with contextlib.suppress(OSError):
            found = folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if ours and time.time() - found.st_mtime > UNLOCKED_S and run_folders.liveness(folder) is False:
                shutil.rmtree(folder, ignore_errors=True)


def launch_once(
    target: Target,
    arm_folder: ArmFolder,
    *,
    arm: Arm,
    phase: Phase,
    pair: int,
    slot: int,
    log: Path,
    timeout_s: float | None = None,
    checkout: Path | None = None,
    step_annotation: str | None = None,
    changed: frozenset[str] | None = None,
    changes: Changes | None = None,
) -> Launch:
    """Run ``target`` in the arm's folder and wait for it; its output goes to ``log``.

    A failure of the program is in ``Launch.problem``; ``NotStartedError`` only if it cannot be started. Its process
    group is terminated with it, also on an interrupt. ``changed``: files that differ between the arms, relative to the
    top. ``changes``: changes of a plug-in to the program.
    """
    with scratch_folder() as run:
        message = Message(
            directory=str(run),
            options=CaptureOptions(level="light", quiet=True, times_only=True, step_annotation=step_annotation),
            pythonpath=python_path(arm_folder, checkout) or None,
            follow=target.command,
            checkout=None if checkout is None else str(checkout),
            tree=None if changed is None else str(arm_folder.root),
            companion="" if changes is None else changes.companion,
            settings={} if changes is None else changes.settings,
        )
        variables = {**({} if changes is None else changes.variables), **_variables(message)}
        began, clock = time.time(), time.monotonic()
        code = run_and_wait(_command_line(target), arm_folder, variables, log, timeout_s)
        ended = Launch(
            arm=arm,
            phase=phase,
            pair=pair,
            slot=slot,
            began_unix_s=round(began, 3),
            seconds=round(time.monotonic() - clock, 3),
            code=code,
        )
        ended = replace(ended, reports=() if changes is None else changes.read(run))
        launch, corrupt = _with_reports(ended, run, changed)
        problem = _problem(launch, corrupt, log, timeout_s)
        return launch if problem is None else replace(launch, problem=problem)


def _with_reports(launch: Launch, run: Path, changed: frozenset[str] | None) -> tuple[Launch, tuple[str, ...]]:
    """Add the reports that the launch's processes wrote to ``run``; a line for each unreadable file."""
    processes, corrupt = run_folders.read_processes(run)
    stepping = [process for process in processes if process.steps_seen]
    process = stepping[0] if stepping else Process(rank=0, directory="")
    reported = replace(
        launch,
        step_source=process.step_source,
        steps_seen=process.steps_seen,
        exact=_exact(stepping),
        environment=_environment(process),
        strays=process_state.read_strays(run),
        changed_loaded=None if changed is None else len(changed & process_state.read_loaded(run)),
        **msgspec.structs.asdict(merge_ranks(processes)),
    )
    return reported, corrupt


def _variables(message: Message) -> dict[str, str]:
    here = str(Path(bootstrap.__file__).parent.resolve())
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, (here, message.pythonpath))),
        VARIABLE: message.dump(),
    }


def _command_line(target: Target) -> list[str]:
    """Like `Target.command_line`, but a script is resolved in the program's current directory."""
    if target.module:
        return [sys.executable, "-m", *target.arguments]
    if target.command:
        command = shutil.which(target.arguments[0])
        if command is None:
            raise NotStartedError(f"{target.arguments[0]}: no such command")
        return [command, *target.arguments[1:]]
    return [sys.executable, *target.arguments]


def python_path(arm_folder: ArmFolder, checkout: Path | None) -> str:
    """The worktree first, so that it also precedes an editable installation of the checkout."""
    if arm_folder.root is None:
        return os.environ.get("PYTHONPATH", "")
    entries = [str(arm_folder.root), *([str(arm_folder.root / "src")] if (arm_folder.root / "src").is_dir() else [])]
    for entry in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        path = Path(entry).resolve()
        if checkout is not None and path.is_relative_to(checkout):
            entries.append(str(arm_folder.root / path.relative_to(checkout)))
        else:
            entries.append(str(path))
    return os.pathsep.join(dict.fromkeys(entries))


def run_and_wait(
    line: list[str], arm_folder: ArmFolder, ours: Mapping[str, str], log: Path, timeout_s: float | None
) -> int:
    """Run a command line in the arm's folder, terminate its process group, and return its exit code as a shell does.

    ``ours``: variables in addition to our environment. Its output goes to ``log``. ``TIMED_OUT`` after ``timeout_s``;
    ``NotStartedError`` if it cannot be started.
    """
    with log.open("wb") as out:
        try:
            child = subprocess.Popen(
                line,
                cwd=arm_folder.folder,
                env={**os.environ, **ours},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=end_with_us(),
            )
        except OSError as error:
            raise NotStartedError(f"{line[0]}: cannot be started: {error.strerror or error}") from error
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = TIMED_OUT
        finally:
            _end(child)
    return 128 - code if code < 0 else code


def _end(child: subprocess.Popen[bytes]) -> None:
    """Terminate the group: surviving children would disturb the next launch."""
    _signal(child, signal.SIGTERM)
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal(child, signal.SIGKILL)
        child.wait()


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    try:
        os.killpg(child.pid, number)
    except (ProcessLookupError, PermissionError):  # the group is empty (PermissionError on macOS)
        return


def _exact(processes: Sequence[Process]) -> dict[str, int]:
    """Counters of the process with the highest values: of several ranks the one that runs out of memory first."""
    counters: dict[str, int] = {}
    for process in processes:
        values = {name: process.memory_after[name] for name in COUNTERS if name in process.memory_after}
        values["steps"] = process.steps_seen
        if process.torch_compilations is not None:
            values["torch_compilations"] = process.torch_compilations
        counters = {name: max(counters.get(name, 0), values.get(name, 0)) for name in {**counters, **values}}
    return counters


def _environment(process: Process) -> dict[str, str]:
    """Versions of the frameworks and the device, as reported by the program."""
    environment = {name: process.packages[name] for name in FRAMEWORKS if name in process.packages}
    for device in process.devices[:1]:
        environment |= {
            key: str(device[name]) for name, key in (("name", "device"), ("platform", "platform")) if name in device
        }
    return environment


def ended_badly(launch: Launch, log: Path, timeout_s: float | None) -> str | None:
    """Why a launch failed, with the end of its output; ``None`` if it did not fail."""
    if launch.code == TIMED_OUT and timeout_s is not None and launch.seconds >= timeout_s:
        return f"it ran past {timeout_s:.0f} s and was ended (--timeout)"
    if launch.code == 0:
        return None
    how = f"exit code {launch.code}"
    if launch.code > 128:
        names = {number.value: number.name for number in signal.Signals}
        how = f"killed by {names.get(launch.code - 128, f'signal {launch.code - 128}')}"
    return f"{how}: {log_tail(log)}"


def _problem(launch: Launch, corrupt: tuple[str, ...], log: Path, timeout_s: float | None) -> str | None:
    ended = ended_badly(launch, log, timeout_s)
    if ended is not None:
        return ended
    if corrupt:
        return corrupt[0]
    if not launch.times_ns():
        if launch.steps_seen:
            return f"only {launch.steps_seen} steps: the first two are warm-up, so none is left to time"
        return (
            "no steps were found in it: call perfscope.step() at the end of the loop's body, "
            f"or name its annotation with --step-annotation{see('no steps found')}"
        )
    return None


def log_tail(log: Path) -> str:
    """The end of a program's output, on one line."""
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - MOST_LOG_BYTES))
        lines = [line.strip() for line in stream.read().decode(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-LOG_LINES:]) or "it printed nothing"


# ``--build``: a user's command, run once in each worktree before the first launch.


def run_build(
    command: str, folders: Mapping[Arm, ArmFolder], *, logs: Path, checkout: Path, announce: Callable[[str], None]
) -> None:
    """Run ``command`` in a shell in the folder of each arm, as it would be typed in the checkout.

    Its output is kept in ``logs``. ``DataError`` if it fails: a partly built arm must not be measured.
    """
    for arm, arm_folder in folders.items():
        announce(f"building {arm}")
        log = logs / f"build-{arm}.log"
        code = run_and_wait(
            [SHELL, "-c", command], arm_folder, {"PYTHONPATH": python_path(arm_folder, checkout)}, log, None
        )
        if code:
            raise DataError(f"{log}: --build failed in {arm} with exit code {code}: {log_tail(log)}")


# One launch of an A/B test under the captures of `perfscope run`, for its content, not its time. Its run is kept.


def profile_once(
    target: Target,
    arm_folder: ArmFolder,
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
    """Run ``target`` in the arm's folder under capture, into a new folder below ``root``; its output goes to ``log``.

    ``Launch.run`` is the folder's name; missing recordings are listed in ``Launch.problem``. ``NotStartedError`` only
    if Python itself cannot be started.
    """
    with scratch_folder() as scratch:
        answer = scratch / "run"
        order = record_child.Order(
            arguments=target.arguments,
            module=target.module,
            command=target.command,
            root=str(root.resolve()),
            name=f"{arm}-{pair + 1}",
            python_path=python_path(arm_folder, checkout),
            answer=str(answer),
            step_annotation=step_annotation,
        )
        began, clock = time.time(), time.monotonic()
        limit = None if timeout_s is None else SLOWER * timeout_s
        line = [sys.executable, "-P", "-m", record_child.__name__, order.dump()]
        code = run_and_wait(line, arm_folder, {"PYTHONPATH": path_with_package()}, log, limit)
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
    problem = ended_badly(launch, log, limit) or why_nothing(directory)
    return launch if problem is None else replace(launch, problem=problem)


def why_nothing(directory: Path | None) -> str | None:
    """Return why the run in ``directory`` of a program that ended normally has no timed steps, or None if it has."""
    if directory is None:
        return "its run was not kept"
    try:
        run = run_folders.read(directory)
    except DataError as error:
        return str(error).removeprefix(f"{directory}/")
    if any(artifact.pass_name in TIMING for artifact in run.artifacts(directory)):
        return None
    reasons = [
        capture.reason for process in run.processes for capture in process.captures if capture.reason is not None
    ]
    return next(iter((*reasons, *run.notes)), "nothing was captured")
