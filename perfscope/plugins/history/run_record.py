"""Record of a run in a store: the metrics of a comparison under its names, steps, findings and the machine."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from msgspec import Struct

from perfscope.analyzers.compare import (
    SOFTWARE,
    STEP_TIME,
    Structure,
    counted,
    environment_of,
    kind_of,
    location,
    structure,
    timed_name,
)
from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers import load_path, resolve
from perfscope.analyzers.savings import step_time
from perfscope.model.commits import is_commit_hash
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Process, Run
from perfscope.model.documents.run_folders import run_files
from perfscope.model.errors import DataError
from perfscope.model.finding import FindingSummary, Where
from perfscope.model.trace import Trace
from perfscope.plugins.history.stored_run import NotMeasured, StoredFinding, StoredMetric, StoredRun, StoredSteps

UID_LENGTH = 32
"""Hexadecimal digits of an id: 128 bits of a digest do not collide by chance."""

MOST_FINDINGS = 200
"""Maximum number of findings, the costliest first. Runs with more have the same few causes in hundreds of places."""
MOST_METRICS = 400
MOST_STEPS = 64
"""Maximum number of ranks whose steps are kept one by one; the metric of the step covers all ranks."""

NO_RECORDING = "no recording"


def uid_of(path: Path) -> str:
    """Return an id by content: a run's manifests, else the files. ``DataError`` if a file cannot be read."""
    files = run_folders.manifests(path) if path.is_dir() else []
    if files:
        files += sorted(path.glob("rank*/process.json"))
    checksum = hashlib.sha256()
    try:
        for file in files or run_files(path):
            name = file.relative_to(path).as_posix() if path.is_dir() else ""
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            checksum.update(f"{name}\0{digest}\n".encode())
    except OSError as error:
        raise DataError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error
    return checksum.hexdigest()[:UID_LENGTH]


def record_of(path: str | Path, *, branch: str | None = None, commit: str | None = None) -> StoredRun:
    """Return the record of a run, a trace file or a folder of traces; texts stay as recorded.

    ``branch`` replaces the manifest's branch; ``commit`` applies if the manifest has none. A run of ours without
    recordings still has its steps. ``DataError`` if nothing is there, it is damaged, or the run is still running.
    """
    folder = resolve(path)
    run = run_folders.read(folder) if folder.is_dir() and run_folders.is_run(folder) else None
    if run is not None and run.state == "running":
        raise DataError(f"{path}: this run is still running")
    traces: Sequence[Trace] = ()
    notes: list[str] = []
    try:
        traces = load_path(folder).traces
    except DataError as error:
        if run is None:
            raise
        notes.append(f"no readable recording: {str(error).removeprefix(f'{folder}: ')}")
    analysis = analyze(traces) if traces else None
    built = structure(traces, traces) if traces else Structure(metrics=(), not_looked=())
    steps = () if run is None else tuple(_steps(run.processes))
    if not any(step.count or step.window_ns for step in steps):
        steps = tuple(_traced(analysis))
    git = {} if run is None or run.git is None else run.git
    recorded_commit, recorded = git.get("commit"), git.get("branch")
    commit = recorded_commit if isinstance(recorded_commit, str) else commit
    known = {} if run is None else environment_of(run)
    return StoredRun(
        uid=uid_of(folder),
        id=folder.resolve().name,
        name=folder.resolve().name.partition(".")[0] if run is None else run.name,
        kind=kind_of(traces[0]) if traces else NO_RECORDING,
        created_utc=datetime.fromtimestamp(folder.stat().st_mtime, UTC).isoformat(timespec="seconds")
        if run is None
        else run.created_utc,
        branch=branch if branch is not None else recorded if isinstance(recorded, str) else None,
        commit=commit if is_commit_hash(commit) else None,
        dirty=git.get("dirty") is True,
        command=() if run is None else run.command,
        state="finished" if run is None else run.state,
        exit_code=None if run is None else run.exit_code,
        ranks=max(1, len(traces)),
        hardware=hardware_of(run, analysis),
        software={name: value for name, value in known.items() if name in (*SOFTWARE, "driver")},
        perfscope=_own_version(),
        metrics=(*_times(analysis, run), *_exact(built))[:MOST_METRICS],
        steps=steps[:MOST_STEPS],
        findings=tuple(_findings(analysis)),
        not_looked=tuple(
            NotMeasured(name=not_looked.name, reason=not_looked.reason) for not_looked in built.not_looked
        ),
        notes=(*(() if run is None else run.notes), *notes),
    )


def _own_version() -> str:
    try:
        return version("perfscope")
    except PackageNotFoundError:  # A checkout that is not installed has no version.
        return ""


def _exact(built: Structure) -> Iterator[StoredMetric]:
    """Yield the metrics of a run compared with itself, under the names that a comparison uses."""
    for metric in built.metrics:
        base = metric.result.base
        text = base if isinstance(base, str) else None
        value = float(base) if isinstance(base, int | float) and math.isfinite(base) else None
        if text is not None or value is not None:
            yield StoredMetric(
                name=metric.result.name,
                unit=metric.result.unit,
                known="exact",
                value=value,
                text=text,
                neutral=metric.neutral,
            )


def _times(analysis: Analysis | None, run: Run | None) -> Iterator[StoredMetric]:
    """Yield the step time of the run's report; of a run without recordings, the manifest's."""
    timed = None if analysis is None else step_time(analysis)
    if timed is not None:
        yield StoredMetric(name=timed_name(timed), unit="ns", known="single captures", value=timed.ns)
    elif run is not None and (ns := run_folders.step_ns_of(run)) is not None:
        yield StoredMetric(name=STEP_TIME, unit="ns", known="single captures", value=float(ns))


def _steps(processes: Sequence[Process]) -> Iterator[StoredSteps]:
    for process in processes:
        window = process.window_ns / process.window_steps if process.window_ns and process.window_steps else None
        yield _summary(process.rank, process.untraced_step_ns, window)


def _traced(analysis: Analysis | None) -> Iterator[StoredSteps]:
    """Yield the profiled steps, used if no step ran without the profiler."""
    steps = () if analysis is None else analysis.steps
    for rank in dict.fromkeys(step.rank for step in steps):
        yield _summary(rank or 0, [step.duration_ns for step in steps if step.rank == rank], None)


def _summary(rank: int, times: Sequence[int], window_ns: float | None) -> StoredSteps:
    usable = [float(ns) for ns in times if ns > 0]
    of = {f"{name}_ns": location(usable, name) if usable else None for name in ("mean", "p10", "median", "p90")}
    return StoredSteps(rank=rank, count=len(usable), window_ns=window_ns, **of)


def hardware_of(run: Run | None, analysis: Analysis | None = None) -> dict[str, str]:
    """Return allowed facts of the hardware; GPUs by name and number, over all ranks of one machine or the recording."""
    known = {} if run is None else environment_of(run)
    if "gpu" not in known and analysis is not None:
        known["gpu"] = counted(device.name for device in analysis.devices if device.name)
    names = (("gpu", "gpu"), ("cpu", "cpu"), ("arch", "machine"), ("system", "system"))
    return {ours: known[theirs] for ours, theirs in names if known.get(theirs)}


def _findings(analysis: Analysis | None) -> Iterator[StoredFinding]:
    for rule, finding in (() if analysis is None else analysis.findings())[:MOST_FINDINGS]:
        yield StoredFinding(rule=rule, **_fields(finding, FindingSummary), **_fields(finding.where, Where))


def _fields(record: Struct, kind: type[Struct]) -> dict[str, Any]:
    """The fields of ``kind`` in a record of it or of a class that extends it."""
    return {name: getattr(record, name) for name in kind.__struct_fields__}
