"""From paths to an analysis: sets of many traces over digests, everything else with all tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from perfscope.analyzers.devices import Device
from perfscope.analyzers.devices.topology import Topology
from perfscope.analyzers.digest import Digest, digest, read_result, trim_evidence
from perfscope.analyzers.engine import Analysis, analyze, chosen_rules, conclude, examine
from perfscope.analyzers.hlo.program_device import judge_for
from perfscope.analyzers.readers.load import (
    Loaded,
    Skipped,
    Task,
    Unit,
    assemble_folder,
    assemble_run,
    join_program_files,
    load_path,
    note_missing_ranks,
    reader_of,
    resolve,
    run_at,
    tasks_of,
    units_of,
)
from perfscope.analyzers.readers.remote import is_remote, remote_units, shown_url
from perfscope.analyzers.readers.run.parts import DividedRun, RunPart
from perfscope.analyzers.readers.workers import LostTask, cores, work_through
from perfscope.analyzers.registry import RULES
from perfscope.model.errors import DataError, UsageError
from perfscope.model.trace import Trace

BYTES_PER_PROCESS = 500_000
"""Bytes of files a process must have to be worth starting: packed, that is a tenth of a second of reading."""

Mapper = Callable[[Callable[[Task], Digest], Sequence[Task]], Iterator[tuple[int, Digest | LostTask]]]
"""Does the work of all tasks somewhere, and gives each one's as it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The analysis of paths and what lay there. ``loaded.traces`` of a set hold only what comparing reads."""

    loaded: Loaded
    analysis: Analysis


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """What a path of the command line leads to. ``folder``: its units are what lies below it."""

    path: str
    units: tuple[Unit, ...]
    folder: bool = False

    def tasks(self) -> tuple[Task, ...]:
        """What is read, one by one."""
        return tuple(task for unit in self.units for task in tasks_of(unit))


def judge_paths(
    paths: Sequence[str | Path],
    rules: Sequence[str] | None = None,
    *,
    device: Device | None = None,
    jobs: int | None = None,
    mapper: Mapper | None = None,
    topology: Topology | None = None,
) -> Judged:
    """Judge what lies at ``paths`` as one job; ``rules``: ids, all for ``None``; ``device``: as ``judge_for``.

    Of several files each is read and judged by itself, at most ``jobs`` at once (cores, if left out) in as many
    processes, or by ``mapper``; only their digests are held together. ``DataError`` as ``load_path``.
    """
    chosen = chosen_rules(rules)
    _check_distinct(paths)
    named = _inputs(paths)
    remote = any(map(is_remote, paths))
    if named is None or (not remote and sum(len(one.tasks()) for one in named) < 2):
        return _judge_whole(paths, rules, device, topology)
    foreign = [rule.id for rule in chosen if rule.compare is not None and rule.id not in RULES]
    if foreign and (mapper is not None or remote):
        raise UsageError(
            f"rule {foreign[0]} compares whole traces, of which only digests come from elsewhere: name other rules "
            "(--rule)"
        )
    if foreign:
        return _judge_whole(paths, rules, device, topology)
    tasks = [task for one in named for task in one.tasks()]
    if mapper is not None:  # workers of a cluster are in other directories
        tasks = list(map(_absolute, tasks))
    ids = tuple(rule.id for rule in chosen)
    through = mapper or partial(work_through, jobs=jobs or _processes(tasks))
    digests = _digests(through(partial(digest, rules=ids, device=device), tasks), tasks)
    loaded = _assemble(named, digests)
    by_trace = {id(told.trace): told for one in digests for told in one.examined}
    for trace in loaded.traces:
        trace.topology = topology
        if id(trace) not in by_trace:  # programs alone are judged here: several files of them are one trace
            if device is not None:
                judge_for(trace, device)
            by_trace[id(trace)] = examine(trace, chosen)
    analysis = conclude([by_trace[id(trace)] for trace in loaded.traces], chosen)
    return Judged(loaded=loaded, analysis=replace(analysis, run=loaded.run))


def _absolute(task: Task) -> Task:
    if _is_remote_task(task):
        return task
    if isinstance(task, RunPart):
        return replace(task, path=str(Path(task.path).absolute()))
    return str(Path(task).absolute())


def _is_remote_task(task: Task) -> bool:
    return is_remote(task.path if isinstance(task, RunPart) else task)


def _check_distinct(paths: Sequence[str | Path]) -> None:
    """Of two files that are shown alike one would be taken for the other."""
    held: dict[str, str] = {}
    for path in map(str, filter(is_remote, paths)):
        if held.setdefault(shown_url(path), path) != path:
            raise UsageError(
                f"{shown_url(path)}: named twice, with parameters that differ only in what is not shown: copy the files"
            )


def _processes(tasks: Sequence[Task]) -> int:
    """Processes that have enough to read to be worth starting."""
    if any(map(_is_remote_task, tasks)):
        return min(cores(), len(tasks))
    size = sum(place.stat().st_size for task in tasks for place in _files(task) if place.is_file())
    return max(1, min(cores(), size // BYTES_PER_PROCESS))


def _files(task: Task) -> list[Path]:
    if isinstance(task, RunPart):
        return [Path(task.path, artifact) for artifact in task.artifacts()]
    return [Path(task)]


def _judge_whole(
    paths: Sequence[str | Path], rules: Sequence[str] | None, device: Device | None, topology: Topology | None
) -> Judged:
    return _judge_loaded(load_paths(paths), rules, device, topology)


def _judge_loaded(
    loaded: Loaded, rules: Sequence[str] | None, device: Device | None, topology: Topology | None
) -> Judged:
    for trace in loaded.traces:
        trace.topology = topology
    if device is not None:
        for trace in loaded.traces:
            judge_for(trace, device)
    return Judged(loaded=loaded, analysis=replace(analyze(loaded.traces, rules), run=loaded.run))


def load_paths(paths: Sequence[str | Path]) -> Loaded:
    """What lies at all paths, each trace once, with all tables. Of several runs no manifest is *the* run's."""
    return _merge_loaded([load_path(path, alone=False) for path in paths])


def _merge_loaded(parts: Sequence[Loaded]) -> Loaded:
    traces: dict[tuple[Path, int | None], Trace] = {}
    for part in parts:
        for trace in part.traces:
            traces.setdefault((Path(trace.source.path).absolute(), trace.source.rank), trace)
    note_missing_ranks(tuple(traces.values()))
    return Loaded(
        traces=join_program_files(tuple(traces.values()), ", ".join(trace.source.path for trace in traces.values())),
        skipped=tuple(one for part in parts for one in part.skipped),
        run=parts[0].run if len(parts) == 1 else None,
    )


def _inputs(paths: Sequence[str | Path]) -> tuple[_Input, ...] | None:
    """Where the paths lead; None where one of them is a folder that a reader reads as a whole, or no trace."""
    found = []
    for path in paths:
        if is_remote(path):
            units, folder = remote_units(str(path))
            found.append(_Input(path=shown_url(str(path)), units=units, folder=folder))
            continue
        place = resolve(path)
        divided = run_at(place)
        if divided is not None:
            found.append(_Input(path=str(place), units=(divided,)))
            continue
        try:
            known = reader_of(place) is not None
        except OSError:
            known = False
        if known and place.is_file():
            found.append(_Input(path=str(place), units=(str(place),)))
        elif not known and place.is_dir():
            found.append(_Input(path=str(place), units=units_of(place), folder=True))
        elif any(map(is_remote, paths)):
            raise UsageError(f"{path}: cannot be analyzed together with files that lie elsewhere")
        else:
            return None
    return tuple(found)


def _digests(done: Iterator[tuple[int, Digest | LostTask]], tasks: Sequence[Task]) -> list[Digest]:
    """By task; the evidence that only a single trace would show goes as soon as there are two."""
    held: dict[int, Digest] = {}
    traces = 0
    for place, one in done:
        if isinstance(one, LostTask):
            task = tasks[place]
            path = shown_url(task) if isinstance(task, str) else f"{shown_url(task.path)}/{task.name()}"
            reason = f"what read it {one.why} (out of memory?)"
            one = Digest(skipped=Skipped(path=path, reason=reason, broken=True))
        held[place] = trim_evidence(one) if traces and one.examined else one
        traces += len(one.examined)
    return [held[place] for place in range(len(tasks))]


def _assemble(named: Sequence[_Input], digests: Sequence[Digest]) -> Loaded:
    """The set as loading it whole would put it together."""
    parts = []
    reads = map(read_result, digests)
    for one in named:
        mine = [next(reads) for _ in one.tasks()]
        if one.folder:
            parts.append(assemble_folder(one.path, one.units, mine))
            continue
        (unit,) = one.units
        if isinstance(unit, DividedRun):
            parts.append(assemble_run(unit, mine))
            continue
        ((traces, lost),) = mine
        if lost is not None:
            raise DataError(f"{lost.path}: {lost.reason}")
        if not traces:
            raise DataError(f"{one.path}: no trace in it")
        parts.append(Loaded(traces=tuple(traces)))
    return _merge_loaded(parts)
