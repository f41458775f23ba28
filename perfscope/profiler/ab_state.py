"""An A/B on disk: its plan, and a line for each launch as it ends. What was interrupted goes on where it was."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.profiler.ab_pairs import Launch
from perfscope.profiler.environment import HIDDEN, redact
from perfscope.profiler.errors import AskedWronglyError, DataError
from perfscope.profiler.store import write_atomically

SCHEMA = "perfscope.ab/1"
PLAN_FILE = "ab.json"
LAUNCHES_FILE = "launches.jsonl"
LOG_FILE = "launch.log"
"""Output of the launch that runs, or ran last."""
PROFILED_FOLDER = "profiled"
"""Run folders of the launches under capture."""
MOST_BYTES = 256 << 20
"""Five hundred launches of ten thousand steps each stay below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is compared, and how. On disk the values of secret-looking options of the command are replaced."""

    command: tuple[str, ...]
    kind: str
    """``script``, ``module`` or ``command``."""
    base: str
    """Commit, in full."""
    head: str
    base_ref: str
    """As it was asked for."""
    head_ref: str
    pairs: int
    """At most."""
    calibration: int
    """Pairs of the base against itself."""
    seed: int
    """Of the order inside the pairs."""
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


class State:
    """The folder of one comparison."""

    def __init__(self, directory: Path, plan: Plan, launches: Sequence[Launch]) -> None:
        """Use `begin` or `resume`."""
        self.directory = directory
        self.plan = plan
        self.launches = list(launches)

    @property
    def log(self) -> Path:
        """Where the output of a launch goes."""
        return self.directory / LOG_FILE

    @property
    def profiled(self) -> Path:
        """Where the runs of profiled launches lie, each a folder as `perfscope run` makes it."""
        return self.directory / PROFILED_FOLDER

    def add(self, launch: Launch) -> None:
        """Keep a launch, on disk first."""
        line = json.dumps(dataclasses.asdict(launch)).encode() + b"\n"
        try:
            with (self.directory / LAUNCHES_FILE).open("ab") as stream:
                stream.write(line)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise DataError(f"{self.directory}: a launch cannot be kept: {error.strerror or error}") from error
        self.launches.append(launch)


def begin(directory: Path, plan: Plan) -> State:
    """A new comparison in ``directory``, which is empty; `DataError` if it cannot be written."""
    raw = {
        "schema": SCHEMA,
        **dataclasses.asdict(plan),
        "command": redact(plan.command),
        "build": redacted_build(plan.build),
    }
    try:
        write_atomically(directory / PLAN_FILE, json.dumps(raw, indent=1).encode())
    except OSError as error:
        raise DataError(f"{directory}: cannot be written: {error.strerror or error}") from error
    return State(directory, plan, ())


def redacted_build(build: str | None) -> str | None:
    """The build command as it may be kept: the values of what looks like a secret replaced."""
    return None if build is None else " ".join(redact(build.split(" ")))


def resume(directory: Path, *, command: tuple[str, ...], kind: str, build: str | None = None) -> State:
    """The comparison in ``directory`` as far as it came. ``DataError`` if it is missing or corrupt.

    ``command``: of the program, in full, as the disk does not have its secrets; ``AskedWronglyError`` if it is another.
    ``build`` likewise, needed only where it has some.

    A last line that was not finished is dropped, as is a launch whose partner did not run.
    """
    plan = _plan(directory / PLAN_FILE)
    if (redact(command), kind) != (plan.command, plan.kind):
        raise AskedWronglyError(f"{directory}: began with another program: {shlex.join(plan.command)}")
    if redacted_build(build) != plan.build and (build is not None or HIDDEN in (plan.build or "")):
        raise AskedWronglyError(f"{directory}: give its --build again: {plan.build}")
    plan = dataclasses.replace(plan, command=command, build=build or plan.build)
    path = directory / LAUNCHES_FILE
    if not path.exists():
        return State(directory, plan, ())
    content = _bytes(path)
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        write_atomically(path, whole)
    launches = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            launches.append(_launch(json.loads(line)))
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"{path}: line {number} is no launch ({error})") from error
    return State(directory, plan, launches)


def _plan(path: Path) -> Plan:
    import msgspec

    try:
        raw = json.loads(_bytes(path))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        raise DataError(f"{path}: not the plan of a comparison that this perfscope reads ({SCHEMA})")
    try:
        return msgspec.convert({key: value for key, value in raw.items() if key != "schema"}, Plan)
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: {error}") from error


def _launch(raw: Any) -> Launch:
    import msgspec

    return msgspec.convert(raw, Launch)


def _bytes(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(f"{path}: larger than {MOST_BYTES >> 20} MiB, not one of ours")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error
