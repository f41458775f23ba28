"""What a store keeps of a run: the metrics that a comparison judges, under its names, steps, findings, the machine."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from perfscope.analyzers.compare.runs.comparison import STEP_TIME, kind_of
from perfscope.analyzers.compare.runs.structure import Structure, structure
from perfscope.analyzers.compare.statistics.estimators import location
from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers.load import load_path, resolve
from perfscope.model.commits import is_commit_hash
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Process, Run
from perfscope.model.documents.run_folders import run_files
from perfscope.model.documents.stored_run import NotMeasured, StoredFinding, StoredMetric, StoredRun, StoredSteps
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace

UID_LENGTH = 32
"""Hexadecimal digits: 128 bits of a digest do not meet by chance."""

MOST_FINDINGS = 200
"""The costliest ones. A run with more has the same few causes in hundreds of places."""
MOST_METRICS = 400
MOST_STEPS = 64
"""Ranks whose steps are kept one by one; the metric of the step is over all."""

SOFTWARE = ("torch", "jax", "jaxlib", "triton")
"""Packages whose version may move a time by itself."""

WINDOW_TIME = f"{STEP_TIME} (mean of a window)"
PROFILED_TIME = f"{STEP_TIME} (profiled)"
NO_RECORDING = "no recording"


def uid_of(place: Path) -> str:
    """By content: of a run its manifests, of anything else its files. ``DataError`` if it cannot be read."""
    files = run_folders.manifests(place) if place.is_dir() else []
    if files:
        files += sorted(place.glob("rank*/process.json"))
    held = hashlib.sha256()
    try:
        for file in files or run_files(place):
            name = file.relative_to(place).as_posix() if place.is_dir() else ""
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            held.update(f"{name}\0{digest}\n".encode())
    except OSError as error:
        raise DataError(f"{place}: {(error.strerror or 'cannot be read').lower()}") from error
    return held.hexdigest()[:UID_LENGTH]


def record_of(path: str | Path, *, branch: str | None = None, commit: str | None = None) -> StoredRun:
    """The record of a run, a trace file or a folder of traces; texts are as they were recorded.

    ``branch`` in place of what the manifest says; ``commit`` where it says none. A run of ours that
    recorded nothing still has its steps. ``DataError``: nothing there, damaged, or a run that is still running.
    """
    place = resolve(path)
    run = run_folders.read(place) if place.is_dir() and run_folders.is_run(place) else None
    if run is not None and run.state == "running":
        raise DataError(f"{path}: this run is still running")
    traces: Sequence[Trace] = ()
    notes: list[str] = []
    try:
        traces = load_path(place).traces
    except DataError as error:
        if run is None:
            raise
        notes.append(f"nothing recorded that can be read: {str(error).removeprefix(f'{place}: ')}")
    analysis = analyze(traces) if traces else None
    built = structure(traces, traces) if traces else Structure(metrics=(), not_looked=())
    steps = () if run is None else tuple(_steps(run.processes))
    profiled = not any(one.count or one.window_ns for one in steps)
    if profiled:
        steps = tuple(_traced(analysis))
    git = {} if run is None or run.git is None else run.git
    said, recorded = git.get("commit"), git.get("branch")
    known = said if isinstance(said, str) else commit
    return StoredRun(
        uid=uid_of(place),
        id=place.resolve().name,
        name=place.resolve().name.partition(".")[0] if run is None else run.name,
        kind=kind_of(traces[0]) if traces else NO_RECORDING,
        created_utc=_created(place) if run is None else run.created_utc,
        branch=branch if branch is not None else recorded if isinstance(recorded, str) else None,
        commit=known if is_commit_hash(known) else None,
        dirty=git.get("dirty") is True,
        command=() if run is None else run.command,
        state="finished" if run is None else run.state,
        exit_code=None if run is None else run.exit_code,
        ranks=max(1, len(traces)),
        hardware=hardware_of(run, analysis),
        software={} if run is None else _software(run),
        perfscope=_own_version(),
        metrics=(*_times(steps, profiled=profiled), *_exact(built))[:MOST_METRICS],
        steps=steps[:MOST_STEPS],
        findings=tuple(_findings(analysis)),
        not_looked=tuple(NotMeasured(name=one.name, reason=one.reason) for one in built.not_looked),
        notes=(*(() if run is None else run.notes), *notes),
    )


def _created(place: Path) -> str:
    """Of files without a manifest: when they were last written."""
    return datetime.fromtimestamp(place.stat().st_mtime, UTC).isoformat(timespec="seconds")


def _own_version() -> str:
    try:
        return version("perfscope")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return ""


def _exact(built: Structure) -> Iterator[StoredMetric]:
    """A run compared with itself: what both sides have, by the names that a comparison gives."""
    for one in built.metrics:
        held = one.result.base
        text = held if isinstance(held, str) else None
        value = float(held) if isinstance(held, int | float) and math.isfinite(held) else None
        if text is not None or value is not None:
            yield StoredMetric(
                name=one.result.name, unit=one.result.unit, known="exact", value=value, text=text, neutral=one.neutral
            )


def _times(steps: Sequence[StoredSteps], *, profiled: bool) -> Iterator[StoredMetric]:
    """One: of windows where they were measured, for a program that queues its work is done with a step before it ends.

    Of several ranks the one in the middle, as in a comparison.
    """
    windows = sorted(one.window_ns for one in steps if one.window_ns is not None)
    medians = sorted(one.median_ns for one in steps if one.median_ns is not None)
    name = WINDOW_TIME if windows else PROFILED_TIME if profiled else STEP_TIME
    held = windows or medians
    if held:
        yield StoredMetric(name=name, unit="ns", known="single captures", value=held[len(held) // 2])


def _steps(processes: Sequence[Process]) -> Iterator[StoredSteps]:
    for process in processes:
        window = process.window_ns / process.window_steps if process.window_ns and process.window_steps else None
        yield _summary(process.rank, process.untraced_step_ns, window)


def _traced(analysis: Analysis | None) -> Iterator[StoredSteps]:
    """Where no step ran without it: with the profiler in their times."""
    steps = () if analysis is None else analysis.steps
    for rank in dict.fromkeys(step.rank for step in steps):
        yield _summary(rank or 0, [step.duration_ns for step in steps if step.rank == rank], None)


def _summary(rank: int, times: Sequence[int], window_ns: float | None) -> StoredSteps:
    usable = [float(ns) for ns in times if ns > 0]
    of = {f"{name}_ns": location(usable, name) if usable else None for name in ("mean", "p10", "median", "p90")}
    return StoredSteps(rank=rank, count=len(usable), window_ns=window_ns, **of)


def hardware_of(run: Run | None, analysis: Analysis | None = None) -> dict[str, str]:
    """By allow-list. GPUs by name and number: of all ranks of one machine, or as the recording names them."""
    names = Counter(str(device["name"]) for device in (() if run is None else run.devices) if "name" in device)
    if not names and run is not None:
        names = Counter(str(one["name"]) for process in run.processes for one in process.devices if "name" in one)
    if not names and analysis is not None:
        names = Counter(device.name for device in analysis.devices if device.name)
    found = {"gpu": ", ".join(f"{count} x {name}" for name, count in sorted(names.items()))} if names else {}
    if run is not None:
        for ours, theirs in (("cpu", "cpu"), ("arch", "machine"), ("system", "system")):
            if run.platform.get(theirs):
                found[ours] = run.platform[theirs]
    return found


def _software(run: Run) -> dict[str, str]:
    """What the program loaded, where it told; else what was installed."""
    seen: dict[str, str] = {}
    for process in run.processes:
        seen |= process.packages
    seen = seen or dict(run.packages)
    found = {name: seen[name] for name in SOFTWARE if seen.get(name)}
    if run.python:
        found["python"] = run.python
    if run.driver:
        found["driver"] = run.driver
    return found


def _findings(analysis: Analysis | None) -> Iterator[StoredFinding]:
    for rule, one in (() if analysis is None else analysis.findings())[:MOST_FINDINGS]:
        yield StoredFinding(
            rule=rule,
            subject=one.subject,
            severity=one.severity,
            basis=one.basis,
            title=one.title,
            cost_ns=one.cost_ns,
            cost_ns_per_step=one.cost_ns_per_step,
            cost_bytes=one.cost_bytes,
            op=one.where.op,
            kernel=one.where.kernel,
            module=one.where.module,
            file=one.where.file,
            line=one.where.line,
        )
