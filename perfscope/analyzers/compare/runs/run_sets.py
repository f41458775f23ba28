"""Several runs of one program as one side of a comparison.

A set is a folder with two or more runs of ``perfscope run``, each a folder with its manifest. All other folders are not
sets: trace files in a folder, or in one folder per host, are the ranks of one job, and the ranks of a run are inside
the run's folder. So ranks and launches cannot be confused.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from msgspec import Struct

from perfscope.analyzers.compare.runs.account import Account, in_parts
from perfscope.analyzers.compare.runs.change import middle_trace
from perfscope.analyzers.compare.runs.comparison import side_summary
from perfscope.analyzers.compare.runs.keys import Key
from perfscope.analyzers.compare.runs.structure import ExactValues, exact_values
from perfscope.analyzers.compare.statistics.estimators import location
from perfscope.analyzers.compare.statistics.warm_up import steady_part
from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.readers import load_path, reader_of
from perfscope.analyzers.time import least_computing, warm_accounts
from perfscope.model.documents import run_folders
from perfscope.model.documents.comparison import Side
from perfscope.model.documents.run import Run
from perfscope.model.errors import DataError, UsageError
from perfscope.model.finding import Outcome
from perfscope.model.trace import Trace

MOST_RUNS = 200
"""Maximum number of runs of a side: three times the pairs of the longest A/B. Reading one takes a second per 5 MB."""

MACHINE = ("system", "machine", "cpu", "gpu", "driver")
"""Fields of a run's manifest that identify the machine; times of two machines are not paired."""
SOFTWARE = ("python", "torch", "jax", "jaxlib", "triton")
"""Software whose version alone may change a time."""


class Launch(Struct, frozen=True, kw_only=True):
    """Numbers of one run, kept after its traces are dropped. Times in ns per step."""

    run: Path
    created_utc: str
    command: tuple[str, ...]
    commit: str | None
    """Commit, with ``, changed`` if the checkout had changes."""
    environment: Mapping[str, str]
    """Known values by the names of ``MACHINE`` and ``SOFTWARE``."""
    summary: Side
    exact: ExactValues
    outcomes: tuple[Outcome, ...]
    times: Mapping[str, float]
    """Step time by the way of timing: ``window``, ``untraced``, ``traced``. With several ranks that of the slowest,
    because the others wait for it."""
    unsteady: str | None
    """Reason why its times are not representative, or ``None``."""
    total_ns: float | None
    """Profiled step; ``None`` without times."""
    parts: Mapping[Key, float]
    """Median time of a call times calls per step, which one interrupted call does not change."""
    calls: Mapping[Key, Fraction]


class RunSet(Struct, frozen=True, kw_only=True):
    """Runs of a side, oldest first, and those left out."""

    path: str
    launches: tuple[Launch, ...]
    remarks: tuple[str, ...] = ()


def runs_in(path: str | Path) -> tuple[Path, ...] | None:
    """Return the runs of a set, oldest first; ``None`` for a run, files or a folder of ranks.

    ``DataError`` if the folder also holds traces, because the intended data is ambiguous, or too many runs.
    """
    folder = Path(path)
    try:
        if not folder.is_dir() or run_folders.is_run(folder):
            return None
        runs = run_folders.directories(folder)
        if len(runs) < 2:
            return None
        if len(runs) > MOST_RUNS:
            raise DataError(f"{path}: {len(runs)} runs, at most {MOST_RUNS} are compared as a set")
        for file in sorted(folder.iterdir()):
            if file.is_file() and not file.name.startswith(".") and reader_of(file) is not None:
                raise DataError(
                    f"{path}: holds {len(runs)} runs and a trace ({file.name}); a set of launches has only runs, "
                    "the ranks of a job are only traces"
                )
    except OSError as error:
        raise DataError(f"{path}: {(error.strerror or 'cannot be read').lower()}") from error
    return tuple(reversed(runs))


def read_set(path: str, runs: Sequence[Path]) -> RunSet:
    """Read the runs of a set one after the other and keep their numbers, not their traces.

    Runs that captured nothing or still run are left out and named. ``DataError`` if none is left;
    ``UsageError`` if programs or kinds differ.
    """
    manifests: dict[Path, Run] = {}
    launches: list[Launch] = []
    lost = []
    for run in runs:
        try:
            manifests[run] = _manifest(run)
        except DataError as error:
            lost.append(f"{run.name} was left out: {_reason(error, run)}")
    _check_one_program(path, manifests.values())
    for run, manifest in manifests.items():
        try:
            launches.append(launch_of(run, manifest, load_path(run).traces))
        except DataError as error:
            lost.append(f"{run.name} was left out: {_reason(error, run)}")
    if not launches:
        raise DataError(f"{path}: none of its {len(runs)} runs can be read: {lost[0]}")
    launches.sort(key=lambda launch: (launch.created_utc, launch.run.name))
    kinds = list(dict.fromkeys((launch.summary.kind, launch.summary.ranks) for launch in launches))
    if len(kinds) > 1:
        text = ", ".join(f"{kind} of {ranks} rank{'s' * (ranks > 1)}" for kind, ranks in kinds)
        raise UsageError(f"{path}: holds runs of different kinds ({text}): a set is launches of one program")
    return RunSet(path=path, launches=tuple(launches), remarks=tuple(lost))


def read_one(path: str) -> RunSet:
    """Read a single run as a set of one. ``UsageError`` if ``path`` is not a run: other times are unknown."""
    folder = Path(path).resolve() if Path(path).exists() else run_folders.find(path)
    if folder.is_dir() and not run_folders.is_run(folder):
        folder = next(iter(run_folders.directories(folder)), folder)
    if not folder.is_dir() or not run_folders.is_run(folder):
        raise UsageError(f"{path}: not a run; a set of runs is compared with a run or another set")
    return read_set(path, (folder,))


def _reason(error: DataError, run: Path) -> str:
    return str(error).removeprefix(f"{run}: ").removeprefix(f"{run}/")


def _manifest(run: Path) -> Run:
    manifest = run_folders.read(run)
    if manifest.state == "running":
        raise DataError(f"{run}: it is still running")
    return manifest


def _check_one_program(path: str, manifests: Iterable[Run]) -> None:
    commands = list(dict.fromkeys(manifest.command for manifest in manifests))
    if len(commands) > 1:
        shown = ", ".join(f"`{' '.join(command)}`" for command in commands[:2])
        raise UsageError(
            f"{path}: holds runs of {len(commands)} programs ({shown}{' ...' if len(commands) > 2 else ''}): a set is "
            "launches of one"
        )


def launch_of(run: Path, manifest: Run, traces: Sequence[Trace]) -> Launch:
    """Return the numbers of a run from its traces."""
    analysis = analyze(traces)
    times, unsteady = _times(analysis)
    account = _account(traces)
    steps = 1 if account is None else account.steps
    git = manifest.git or {}
    commit = git.get("commit")
    return Launch(
        run=run,
        created_utc=manifest.created_utc,
        command=manifest.command,
        commit=f"{commit}{', changed' if git.get('dirty') is True else ''}" if isinstance(commit, str) else None,
        environment=environment_of(manifest),
        summary=side_summary(traces),
        exact=exact_values(traces),
        outcomes=analysis.outcomes,
        times=times,
        unsteady=unsteady,
        total_ns=None if account is None else account.total_ns / steps,
        parts={} if account is None else {part.key: part.typical_ns / steps for part in account.parts},
        calls={} if account is None else {part.key: Fraction(part.calls, steps) for part in account.parts},
    )


def _account(traces: Sequence[Trace]) -> Account | None:
    trace = middle_trace(traces)
    return None if trace is None else in_parts(trace, least_computing(trace.fact(warm_accounts)))


def _times(analysis: Analysis) -> tuple[dict[str, float], str | None]:
    """Return the slowest rank's typical step per way of timing, and the reason why steps are not steady."""
    times: dict[str, float] = {}
    windows = [window.duration_ns / window.steps for window in analysis.windows if window.steps]
    if windows:
        times["window"] = max(windows)
    unsteady = None
    for name, traced in (("untraced", False), ("traced", True)):
        medians = []
        for rank in dict.fromkeys(step.rank for step in analysis.steps if step.traced is traced):
            steps = [step.duration_ns for step in analysis.steps if step.traced is traced and step.rank == rank]
            steady = steady_part(steps)
            typical = location(steps[steady.dropped :], "median") if all(ns > 0 for ns in steps) else None
            if typical is not None:
                medians.append(typical)
            if not traced:
                unsteady = unsteady or steady.problem
        if medians:
            times[name] = max(medians)
    return times, unsteady


def environment_of(run: Run) -> dict[str, str]:
    """Return allowed facts of machine and software: versions that the program loaded, else installed versions."""
    seen: dict[str, str] = {}
    for process in run.processes:
        seen |= process.packages
    seen = seen or dict(run.packages)
    known = {
        **{name: run.platform.get(name, "") for name in ("system", "machine", "cpu")},
        "gpu": counted(run.device_names()),
        "driver": run.driver or "",
        "python": run.python,
        **{name: seen.get(name, "") for name in SOFTWARE[1:]},
    }
    return {name: value for name, value in known.items() if value}


def counted(names: Iterable[str]) -> str:
    """Return names with their number: ``8 x NVIDIA H100``."""
    return ", ".join(f"{count} x {name}" for name, count in sorted(Counter(names).items()))


def middle_of(launches: Sequence[Launch]) -> int:
    """Return the index of the launch with the median profiled step, else 0."""
    timed = [(launch.total_ns, index) for index, launch in enumerate(launches) if launch.total_ns is not None]
    if not timed:
        return 0
    typical = statistics.median_low(ns for ns, _ in timed)
    return next(index for ns, index in timed if ns == typical)
