"""A run: its versioned manifest, with the program, the outcome and the captures.

Only the standard library is imported at the top: the same types are written from inside the user's
process, where no package but this may be assumed to be installed.
"""

from __future__ import annotations

import dataclasses
import itertools
import signal
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

from perfscope.model.errors import DataError, see
from perfscope.model.files import json_bytes

RUN_SCHEMA = "perfscope.run/1"
PROCESS_SCHEMA = "perfscope.process/1"

RUN_FILE = "run.json"
TASK_FILE = "run-task{:05d}.json"
"""The manifest of each further ``perfscope run`` that writes into the same run."""
PROCESS_FILE = "process.json"
ATTACHED_FILE = ".framework-seen"
"""Made by the first process that imports torch or jax: without it the program had neither."""
STEPS_FILE = ".steps-seen"
"""Made by a process of the run that has steps and was not started by the program."""
COMPILE_STEPS_FILE, COMPILE_STEPS_SCHEMA = "steps.json", "perfscope.compile_steps/1"
"""Steps in which torch.compile compiled, next to the log of a process."""
FUSION_FILE, FUSION_SCHEMA = "fusion.jsonl", "perfscope.fusion/1"
"""Pairs that inductor's scheduler did not fuse, next to the log of a process."""
FAILURES_FILE = "failures.txt"
"""One line per internal error of perfscope inside the program."""

MOST_BYTES = 64 << 20
"""A manifest of 4096 ranks with 10,000 step times each stays below; perfscope never writes a larger file."""

OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")
"""Types of the error with which a program ends if memory runs out; the run has the type before the message."""

RunState = Literal["running", "finished", "interrupted", "killed"]
"""``killed``: ended by a signal other than SIGINT, or perfscope itself was killed while it ran."""

CaptureState = Literal["recorded", "missing"]
Manifest = TypeVar("Manifest", "Run", "Process")


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One pass of one process: the file that a tool wrote, or why there is no file."""

    pass_name: str
    """``timing``, ``detail`` or ``structure``; the JSON key is ``pass``."""
    tool: str
    """The capture module (``CAPTURES``) that made it."""
    state: CaptureState
    steps: tuple[int, int] | None = None
    """Complete steps in it, half open; ``None`` without one."""
    reason: str | None = None
    """Reason why the file is missing, or why a part of it is."""
    artifact: str | None = None
    """Path of the file, relative to the run directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFact:
    """A setting of the program, or a call of it that matters, at the user's line."""

    name: str
    """``anomaly_mode``, ``float64``, ``loader_start`` ..."""
    value: str = ""
    file: str | None = None
    """As the user names it."""
    line: int | None = None
    count: int = 1
    """How often it happened."""
    total_ns: int | None = None
    """Time of all together, without a profiler; ``None``: not measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process with steps. ``directory`` is relative to the run directory."""

    rank: int
    directory: str
    schema: str = PROCESS_SCHEMA
    pid: int | None = None
    """Its number on its machine."""
    child: bool = False
    """Whether the program started it, and it captured because no process before it had steps."""
    world_size: int | None = None
    step_source: str | None = None
    """``perfscope.step``, ``torch.profiler``, ``annotation NAME``, ``optimizer.step`` or ``whole program``."""
    steps_seen: int = 0
    """Complete steps."""
    warmup: int = 0
    untraced_step_ns: tuple[int, ...] = ()
    """Durations of steps that ran without any profiler, after the warm-up, in order."""
    untraced_step_tokens: tuple[tuple[int, int] | None, ...] = ()
    """(Sequences, tokens per sequence) of the model's input in the same steps; empty if unknown."""
    untraced_step_idle_rows: tuple[int | None, ...] = ()
    """Sequences of the same steps that have ended and only fill the batch; empty if unknown."""
    window_ns: int | None = None
    """Duration of ``window_steps`` consecutive steps without a profiler, with a wait for the devices before the first
    and after the last: their time at the program's own overlap, pauses between them included. ``None``: unmeasured."""
    window_steps: int = 0
    window_compilations: int = 0
    """Programs that jax compiled, and frames that torch compiled, in the window."""
    windows_ns: tuple[int, ...] = ()
    """All windows in order, each of ``window_steps`` steps, if only times were taken."""
    torch_compilations: int | None = None
    """Frames that torch.compile began to compile in the whole program; ``None``: unknown."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes by purpose when the first pass began, and allow-listed allocator counters."""
    memory_after: Mapping[str, int] = field(default_factory=dict)
    """The allocator counters when the last pass had ended."""
    resident_bytes: int | None = None
    """Largest resident memory of the process so far; ``None``: not recorded."""
    devices: tuple[Mapping[str, str | int], ...] = ()
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions as this process saw them."""
    facts: tuple[ProgramFact, ...] = ()
    captures: tuple[Capture, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A recorded file of a run: its rank, its pass, and its path."""

    rank: int
    pass_name: str
    path: Path
    steps: tuple[int, int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The manifest ``run.json``. No host name, user name, environment or absolute path is in it."""

    id: str
    name: str
    created_utc: str
    """ISO 8601."""
    command: tuple[str, ...]
    """As started, secrets and home directories masked as in reports."""
    state: RunState
    schema: str = RUN_SCHEMA
    task: int = 0
    """Number of the ``perfscope run`` that wrote this, if a job started several of them into one run."""
    tasks: int | None = None
    """Number of tasks of the job; ``None`` for a single one, or if unknown."""
    script: str | None = None
    """Relative to the folder it was started in, ``None`` for a module or a command."""
    exit_code: int | None = None
    error: str | None = None
    """Type and first line of the message of the exception that ended the program, if it failed with one."""
    git: Mapping[str, str | bool] | None = None
    python: str = ""
    platform: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Mapping[str, str | int], ...] = ()
    driver: str | None = None
    clocks: tuple[Mapping[str, str], ...] = ()
    machine_load: Mapping[str, float] = field(default_factory=dict)
    """Shares of all processors' time while the program ran: ``others_share`` is for other programs, ``steal_share`` for
    the host of a virtual machine. Empty for a job of several tasks, because they count as one program."""
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """Notes for the reader of a report, one sentence each."""
    processes: tuple[Process, ...] = ()

    def device_names(self) -> list[str]:
        """Names of the machine's devices; if unknown, of the devices that the processes used."""
        used = [device for process in self.processes for device in process.devices]
        names = ([str(device["name"]) for device in devices if "name" in device] for devices in (self.devices, used))
        return next(filter(None, names), [])

    def artifacts(self, directory: Path) -> tuple[Artifact, ...]:
        """The recorded files below ``directory``, the run's own, by rank and in the order of the passes."""
        return tuple(
            Artifact(
                rank=process.rank,
                pass_name=capture.pass_name,
                path=directory / capture.artifact,
                steps=capture.steps,
            )
            for process in self.processes
            for capture in process.captures
            if capture.artifact is not None
        )


def dump(manifest: Run | Process) -> bytes:
    """A manifest as UTF-8 JSON."""
    return json_bytes(_to_json(dataclasses.asdict(manifest)), indent=1)


def load_run(path: Path) -> Run:
    """The manifest in the file ``path``; ``DataError`` if it is missing, corrupt or of another schema."""
    return _load_manifest(path, Run, RUN_SCHEMA)


def load_process(path: Path) -> Process:
    """The process manifest in the file ``path``; ``DataError`` as in ``load_run``."""
    return _load_manifest(path, Process, PROCESS_SCHEMA)


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {"pass" if key == "pass_name" else key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    return value


def _load_manifest(path: Path, kind: type[Manifest], schema: str) -> Manifest:
    from perfscope.model.documents.bounded_json import read_document

    manifest = read_document(path, kind, schema, what="a manifest", most_bytes=MOST_BYTES, renamed=_from_json)
    for process in manifest.processes if isinstance(manifest, Run) else (manifest,):
        _check_contained(path, process)
    return manifest


def _from_json(raw: dict[str, Any]) -> dict[str, Any]:
    named = dict(raw)
    captures = named.get("captures")
    if isinstance(captures, list):
        named["captures"] = [
            {"pass_name" if key == "pass" else key: item for key, item in capture.items()}
            if isinstance(capture, dict)
            else capture
            for capture in captures
        ]
    processes = named.get("processes")
    if isinstance(processes, list):
        named["processes"] = [_from_json(process) if isinstance(process, dict) else process for process in processes]
    return named


def _check_contained(path: Path, process: Process) -> None:
    """Manifests are untrusted input: one must not lead out of its run directory."""
    for name in (process.directory, *(capture.artifact for capture in process.captures)):
        if name is None:
            continue
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name:
            raise DataError(f"{path}: {name!r} leads out of the run directory")


# One run of several tasks: the result of each, and the missing ranks. No file is touched here.


MOST_NAMED = 8
"""Tasks or ranks a note names one by one."""


def merge_tasks(runs: Mapping[int, Run], running: Collection[int], processes: tuple[Process, ...]) -> Run:
    """Merge the manifests of a run's tasks. ``runs``: manifest by task, not empty; ``running``: tasks that live."""
    first = runs[min(runs)]
    fates: dict[str, list[int]] = defaultdict(list)
    for number, task in sorted(runs.items()):
        if number == first.task:
            continue
        if task.state == "running":
            fates["it still runs" if number in running else "its perfscope was killed"].append(number)
        elif task.exit_code and not task.notes:
            fates[f"its program ended with {task.exit_code}"].append(number)
        for note in task.notes:
            fates[note].append(number)
    notes = tuple(f"{list_numbers('task', numbers)}: {fate}" for fate, numbers in fates.items())
    state = first.state
    if state == "running" and first.task not in running:
        state = "killed"
    return replace(first, state=state, notes=(*first.notes, *notes), processes=processes or first.processes)


SIGNALLED = 128
"""Added to the signal that killed a program in its exit code, as a shell gives it."""


def failure_of(state: str, exit_code: int | None, error: str | None) -> str | None:
    """How the program failed, in one line; ``None`` if it did not, or was interrupted by its user."""
    if state in ("running", "interrupted") or not exit_code:
        return None
    if state == "killed":
        return f"the program was killed by {signal.Signals(exit_code - SIGNALLED).name}"
    out_of_memory = error is not None and error.partition(":")[0] in OUT_OF_MEMORY
    hint = see("out of memory") if out_of_memory else ""
    return f"the program failed with exit code {exit_code}" + (f": {error}{hint}" if error else "")


def missing_ranks(ranks: Collection[int], world_size: int | None) -> str | None:
    """``'rank 3 of 4 left nothing here'``; ``None`` if all are there or their number is unknown."""
    world = world_size or 0  # a corrupt manifest may claim any number
    first = list(itertools.islice((rank for rank in range(world) if rank not in ranks), MOST_NAMED))
    count = world - sum(0 <= rank < world for rank in set(ranks))
    return f"{list_numbers('rank', first, count)} of {world:,} left nothing here" if first else None


def ranks_of(run: Run) -> tuple[set[int], int | None]:
    """The ranks that recorded something, and their world size: as reported, else the number of tasks."""
    ranks = {process.rank for process in run.processes if any(capture.artifact for capture in process.captures)}
    worlds = {process.world_size for process in run.processes if process.world_size is not None}
    return ranks, max(worlds, default=run.tasks)


def list_numbers(what: str, numbers: Sequence[int], count: int | None = None) -> str:
    """``'ranks 3, 5'``; beyond ``MOST_NAMED`` only their number. ``count``: of all, where ``numbers`` are the first."""
    count = len(numbers) if count is None else count
    more = f" and {count - MOST_NAMED:,} more" if count > MOST_NAMED else ""
    return f"{what}{'s' if count > 1 else ''} {', '.join(map(str, numbers[:MOST_NAMED]))}{more}"
