"""Launches of an A/B and their pairs, as plain values, for the disk and for the judge."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from perfscope.model.errors import DataError, UsageError
from perfscope.model.files import json_bytes, write_atomically
from perfscope.model.untrusted_text import MASK, scrub_command

Arm = Literal["base", "head"]
Phase = Literal["warm", "calibrate", "measure", "confirm", "profile"]
Decision = Literal["go on", "stop", "confirm"]

WORKTREES_PREFIX = "perfscope-ab-"
"""Prefix of the folder with the worktrees of a comparison; each worktree has the name of its arm."""


class RankTimes(Struct, frozen=True, kw_only=True):
    """Step times of a launch."""

    step_ns: tuple[int, ...] = ()
    """Duration of each step after the first two, in order, as the host saw it."""
    windows_ns: tuple[int, ...] = ()
    """Durations of windows of ``window_steps`` steps, waited for at both ends, if the device is asynchronous."""
    window_steps: int = 0
    ranks: int = 1
    """Processes whose steps its times are made of: each step is as long as that of the slowest."""
    remark: str | None = None
    """Remark on its times for the reader of the report."""


class Launch(RankTimes, frozen=True, kw_only=True):
    """Result of one launch. ``problem``: why its times cannot be used, or ``None``."""

    arm: Arm
    phase: Phase
    pair: int
    """Number of the pair in its phase."""
    slot: int
    """0: it ran first in its pair, 1: second."""
    attempt: int = 0
    """Attempt of the pair, from 0: a pair is repeated if a launch of it failed."""
    seconds: float
    """From start to end of the process."""
    code: int
    began_unix_s: float = 0.0
    step_source: str | None = None
    steps_seen: int = 0
    exact: Mapping[str, int] = field(default_factory=dict)
    """Counters that the program's speed does not change."""
    strays: tuple[str, ...] = ()
    """Modules that came from the checkout, not from the arm's folder."""
    changed_loaded: int | None = None
    """Number of imported Python files that differ between the commits; ``None``: not checked."""
    run: str | None = None
    """Run folder of a profiled launch, relative to the comparison's."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Hardware and software of the launch, by an allow-list."""
    machine: Mapping[str, float] = field(default_factory=dict)
    """Counters of the machine before, while and after it ran (`ab_machine`)."""
    reports: tuple[Any, ...] = ()
    """Reports of the companion that a plug-in has in the processes (`perfscope.profiler.ab.launch.Changes`)."""
    problem: str | None = None

    def times_ns(self) -> tuple[float, ...]:
        """Times per step, in order: of the windows where there are some, else of the single steps."""
        if self.windows_ns and self.window_steps > 0:
            return tuple(window / self.window_steps for window in self.windows_ns)
        return tuple(map(float, self.step_ns))


Pair = tuple[Launch, Launch]
"""Base and head; for a calibration the launch that ran first, and the second."""


class Pairs(Struct, frozen=True, kw_only=True):
    """The pairs of each phase, in order; of each pair its last attempt that succeeded."""

    calibration: tuple[Pair, ...]
    measured: tuple[Pair, ...]
    confirming: tuple[Pair, ...]
    profiled: tuple[Pair, ...] = ()
    lost: tuple[Launch, ...] = ()
    """Profiled launches that gave nothing; they cost the causes, not the verdict."""


def pairs_of(launches: Sequence[Launch], phase: Phase) -> tuple[Pair, ...]:
    """The whole pairs of a phase by number: both launches of one attempt, without a problem."""
    result: dict[int, Pair] = {}
    for first, second in itertools.pairwise(launches):
        partners = (first.phase, first.pair, first.attempt) == (second.phase, second.pair, second.attempt)
        if first.phase != phase or not partners or (first.slot, second.slot) != (0, 1):
            continue
        if first.problem is None and second.problem is None:
            swap = phase != "calibrate" and first.arm == "head"
            result[first.pair] = (second, first) if swap else (first, second)
    return tuple(result[pair] for pair in sorted(result))


# An A/B on disk: its plan, and one line per launch, written when it ends. An interrupted A/B resumes there.


AB_SCHEMA = "perfscope.ab/1"
PLAN_FILE = "ab.json"
LAUNCHES_FILE = "launches.jsonl"
LOG_FILE = "launch.log"
"""Output of the launch that runs, or ran last."""
PROFILED_FOLDER = "profiled"
"""Run folders of the launches under capture."""
MAX_AB_BYTES = 256 << 20
"""Five hundred launches of ten thousand steps each stay below."""


class AbPlan(Struct, frozen=True, kw_only=True):
    """Sides and settings of a comparison. On disk, secret-looking option values of the command are replaced."""

    command: tuple[str, ...]
    kind: str
    """``script``, ``module`` or ``command``."""
    base: str
    """Commit, in full."""
    head: str
    base_ref: str
    """The ref as the user wrote it."""
    head_ref: str
    pairs: int
    """At most."""
    calibration: int
    """Pairs of the base against itself."""
    seed: int
    """Seed of the order inside the pairs."""
    least: float
    """The smallest change that matters, relative."""
    confirm: bool = True
    timeout_s: float | None = None
    links: tuple[str, ...] = ()
    step_annotation: str | None = None
    profile: int = 0
    """Pairs of launches under capture, after the verdict: for its cause."""
    build: str | None = None
    """A shell command that is run in each worktree before the first launch."""


class AbState:
    """The folder of one comparison."""

    def __init__(self, directory: Path, plan: AbPlan, launches: Sequence[Launch]) -> None:
        """Use `begin` or `resume`."""
        self.directory = directory
        self.plan = plan
        self.launches = list(launches)

    @property
    def log(self) -> Path:
        """File with the output of a launch."""
        return self.directory / LOG_FILE

    @property
    def profiled(self) -> Path:
        """Folder of the runs of profiled launches, each a folder as `perfscope run` makes it."""
        return self.directory / PROFILED_FOLDER

    def add(self, launch: Launch) -> None:
        """Keep a launch, on disk first."""
        line = json_bytes(msgspec.to_builtins(launch)) + b"\n"
        try:
            with (self.directory / LAUNCHES_FILE).open("ab") as stream:
                stream.write(line)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise DataError(f"{self.directory}: a launch cannot be kept: {error.strerror or error}") from error
        self.launches.append(launch)


def begin(directory: Path, plan: AbPlan) -> AbState:
    """A new comparison in ``directory``, which is empty; `DataError` if it cannot be written."""
    raw = {
        "schema": AB_SCHEMA,
        **msgspec.to_builtins(plan),
        "command": scrub_command(plan.command),
        "build": redacted_build(plan.build),
    }
    try:
        write_atomically(directory / PLAN_FILE, json_bytes(raw, indent=1))
    except OSError as error:
        raise DataError(f"{directory}: cannot be written: {error.strerror or error}") from error
    return AbState(directory, plan, ())


def redacted_build(build: str | None) -> str | None:
    """The build command for storage, with secret-looking values replaced."""
    return None if build is None else " ".join(scrub_command(build.split(" ")))


def _is_masked(text: str) -> bool:
    """Whether something may be masked in it: a secret or a home directory."""
    return any(mark in text for mark in (MASK, "~", "…"))


def resume(directory: Path, *, command: tuple[str, ...], kind: str, build: str | None = None) -> AbState:
    """The comparison in ``directory`` as far as it came. ``DataError`` if it is missing or corrupt.

    ``command``: of the program, in full, as the disk does not have its secrets; ``UsageError`` if it is another.
    ``build`` likewise, needed only where it has some.

    A last line that was not finished is dropped, as is a launch whose partner did not run.
    """
    from perfscope.model.documents.bounded_json import read_bytes, read_document

    what = "the plan of a comparison"
    plan = read_document(directory / PLAN_FILE, AbPlan, AB_SCHEMA, what=what, most_bytes=MAX_AB_BYTES)
    if (scrub_command(command), kind) != (plan.command, plan.kind):
        raise UsageError(f"{directory}: began with another program: {shlex.join(plan.command)}")
    if redacted_build(build) != plan.build and (build is not None or _is_masked(plan.build or "")):
        raise UsageError(f"{directory}: give its --build again: {plan.build}")
    plan = msgspec.structs.replace(plan, command=command, build=build or plan.build)
    path = directory / LAUNCHES_FILE
    if not path.exists():
        return AbState(directory, plan, ())
    content = read_bytes(path, MAX_AB_BYTES, "one of ours")
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        write_atomically(path, whole)
    launches = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            launches.append(msgspec.json.decode(line, type=Launch))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise DataError(f"{path}: line {number} is not a valid launch ({error})") from error
    return AbState(directory, plan, launches)
