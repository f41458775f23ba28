"""From paths to an analysis: find the files, divide them into tasks, read and analyze each task, merge the results.

Several tasks are analyzed separately, in as many processes as are useful or on a cluster, and reduced to the data that
comparisons read; a single task keeps all its tables. `readers.load` has the other steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from perfscope.analyzers.configuration import NO_CONFIGURATION, Configuration
from perfscope.analyzers.critical_path import MOST_RANKS
from perfscope.analyzers.devices import Device, Topology
from perfscope.analyzers.engine import Analysis, Examined, conclude, examine
from perfscope.analyzers.ranks import main_job
from perfscope.analyzers.readers import (
    Input,
    Loaded,
    LostTask,
    ReadTrace,
    RunPart,
    Skipped,
    Task,
    TaskResult,
    assemble,
    cores,
    different,
    discover,
    is_remote,
    of_ranks,
    read_task,
    set_aside,
    work_here,
    work_through,
)
from perfscope.analyzers.registry import chosen_rules, recorded_by, rule_homes
from perfscope.analyzers.selection import EVERYTHING, Selection, part_of
from perfscope.analyzers.thresholds import Thresholds, changed
from perfscope.model.errors import DataError, UsageError, see
from perfscope.model.finding import Rule
from perfscope.model.plugins import load, plugins
from perfscope.model.trace import Trace

BYTES_PER_PROCESS = 500_000
"""Minimum bytes of files per process: packed, that is a tenth of a second of reading."""


class JudgeTask(Struct, frozen=True, kw_only=True):
    """Reading and analysis of one task. It is sent to other processes, so it has ids of rules instead of rules."""

    rules: tuple[str, ...] | None = None
    """Ids of the rules; ``None`` for all."""
    device: Device | None = None
    topology: Topology | None = None
    whole: bool = False
    """Whether to keep all tables."""
    graphs: bool = False
    """Whether to keep each rank's dependency graph."""
    off: Mapping[str, str] = field(default_factory=dict)
    """Rule -> reason for turning it off."""
    thresholds: Thresholds = field(default_factory=dict)
    selection: Selection = EVERYTHING
    reports: tuple[str, ...] = ()
    """Files on kernels of the traces."""
    chosen: dict[frozenset[str], tuple[Rule, ...]] = field(default_factory=dict)
    """Rules by what is recorded, as far as they were needed; empty where the task is sent."""

    def __call__(self, task: Task) -> TaskResult:
        """Read a task and analyze its traces."""
        if is_remote(task.path if isinstance(task, RunPart) else task):
            task_result: TaskResult = _scale_out().work_on_copy(task, self.judged)
            return task_result
        return self.judged(read_task(task, self.reports))

    def judged(self, read: TaskResult) -> TaskResult:
        """Return the traces of a task, analyzed and reduced.

        Compiled programs alone are not analyzed yet: several such files are merged into one trace at the end.
        """
        ranks = self.selection.ranks
        traces = [trace for trace in read.traces if ranks is None or trace.trace.source.rank in ranks]
        recorded = recorded_by(trace.trace for trace in traces)
        if recorded not in self.chosen:
            self.chosen[recorded] = chosen_rules(self.rules, self.off, recorded=recorded)
        rules = self.chosen[recorded]
        try:
            with changed(self.thresholds):
                return replace(read, traces=tuple(self._judged(trace, rules) for trace in traces))
        except DataError as error:  # the requested part is missing
            path = read.traces[0].trace.source.path
            return TaskResult(skipped=Skipped(path=path, reason=str(error).removeprefix(f"{path}: "), broken=True))

    def _judged(self, read_trace: ReadTrace, rules: Sequence[Rule]) -> ReadTrace:
        if read_trace.trace.source.programs is not None:
            return read_trace
        examined = self.examined(read_trace.trace, rules)
        if self.whole:
            return examined
        from perfscope.analyzers.digest import reduce_trace

        kept = replace(examined, trace=reduce_trace(examined.trace, graph=self.graphs))
        if kept.trace is not examined.trace:
            # Facts may refer to the trace itself, which would keep its tables until the next garbage collection.
            examined.trace.forget()
        return kept

    def examined(self, trace: Trace, rules: Sequence[Rule]) -> Examined:
        """Evaluate the rules on a trace, or on the requested part of it."""
        if self.device is not None:
            from perfscope.analyzers.hlo import judged_for

            trace = judged_for(trace, self.device)
        return examine(part_of(msgspec.structs.replace(trace, topology=self.topology), self.selection), rules)


Executor = Callable[[JudgeTask, Sequence[Task]], Iterator[tuple[int, TaskResult | LostTask]]]
"""Runs tasks; see `workers`."""


class Judged(Struct, frozen=True, kw_only=True):
    """The analysis of paths and the loaded sources.

    With several tasks, ``loaded.traces`` have only the data for comparisons.
    """

    loaded: Loaded
    analysis: Analysis


def analysis_of_run(directory: Path) -> Analysis:
    """Return the analysis of one run; ``DataError`` as in ``load``."""
    return judge_paths([directory]).analysis


def judge_paths(
    paths: Sequence[str | Path],
    rules: Sequence[str] | None = None,
    *,
    device: Device | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    executor: Executor | None = None,
    topology: Topology | None = None,
    configuration: Configuration = NO_CONFIGURATION,
    selection: Selection = EVERYTHING,
) -> Judged:
    """Analyze the files at ``paths`` as one job; of a folder with several jobs, the main one.

    ``rules``: ids, ``None`` for all; ``device``: as in ``judged_for``.

    ``configuration``: only rules, thresholds and ignored paths are used; rules named in ``rules`` are never off.

    The tasks run in at most ``jobs`` processes (default: number of cores), on the Dask cluster at ``scheduler``, or in
    ``executor``. Only the ``selection`` of the recordings is analyzed. ``DataError`` as in ``load`` and ``part_of``,
    ``UsageError`` as in ``of_ranks``.
    """
    off = configuration.off if rules is None else {}
    chosen = chosen_rules(rules, off, recorded=frozenset())
    inputs, reports = set_aside([of_ranks(item, selection.ranks) for item in _inputs(paths)])
    tasks = [task for item in inputs for task in item.tasks()]
    whole = _keeps_tables(chosen, tasks, anywhere=scheduler is not None)
    work = JudgeTask(
        rules=tuple(rule.id for rule in chosen), device=device, topology=topology, whole=whole, off=dict(off),
        graphs=len(tasks) <= MOST_RANKS, thresholds=configuration.thresholds, selection=selection,
        reports=reports if scheduler is None else tuple(str(Path(report).absolute()) for report in reports),
    )  # fmt: skip
    if executor is None and not whole:
        executor = (
            partial(work_through, jobs=jobs or _processes(tasks))
            if scheduler is None
            else partial(_scale_out().work_on_cluster, address=scheduler)
        )
    if scheduler is not None and not whole:  # workers of a cluster have other working directories
        tasks = list(map(_absolute, tasks))
    loaded = assemble(inputs, _collected((executor or work_here)(work, tasks), tasks, whole=whole), main_job)
    chosen = chosen_rules(work.rules, off, recorded=recorded_by(result.trace for result in loaded.results))
    with changed(configuration.thresholds):
        examined = [
            result if isinstance(result, Examined) else work.examined(result.trace, chosen) for result in loaded.results
        ]
        analysis = conclude(examined, chosen, configuration.ignore)
    loaded = replace(loaded, results=tuple(examined))
    return Judged(loaded=loaded, analysis=replace(analysis, run=loaded.run, settings=configuration.sentences()))


def _scale_out() -> Any:
    """The plug-in's module for remote files and clusters; ``UsageError`` without the plug-in."""
    home = next((plugin.scale_out for plugin in plugins() if plugin.scale_out), None)
    if home is None:
        raise UsageError("URLs and --scheduler need the plug-in scale_out, which is not installed")
    return load(home)


def _inputs(paths: Sequence[str | Path]) -> list[Input]:
    remote = [str(path) for path in paths if is_remote(path)]
    if not remote:
        return list(map(discover, different(paths)))
    _check_distinct(remote)
    inputs: list[Input] = []
    for path in paths:
        if is_remote(path):
            inputs.append(_scale_out().discover_remote(str(path)))
            continue
        inputs.append(discover(path))
    return inputs


def _check_distinct(urls: Sequence[str]) -> None:
    """Raise ``UsageError`` if two URLs are equal without secrets: one file would replace the other."""
    known: dict[str, str] = {}
    for url in urls:
        shown = _scale_out().shown_url(url)
        if known.setdefault(shown, url) != url:
            raise UsageError(f"{shown}: two URLs differ only in parameters that are never shown; copy the files")


def _is_remote_task(task: Task) -> bool:
    return is_remote(task.path if isinstance(task, RunPart) else task)


def _keeps_tables(rules: Sequence[Rule], tasks: Sequence[Task], *, anywhere: bool) -> bool:
    """Whether all tables are kept: for a single task, and if a third-party rule compares traces."""
    remote = any(map(_is_remote_task, tasks))
    if len(tasks) < 2 and not remote:
        return True
    fits = {rule for rule, home in rule_homes().items() if home.compares_digests}
    foreign = [rule.id for rule in rules if rule.compare is not None and rule.id not in fits]
    if foreign and (anywhere or remote):
        raise UsageError(
            f"rule {foreign[0]} compares whole traces, but clusters return only digests: select other rules (--rule)"
        )
    return bool(foreign)


def _absolute(task: Task) -> Task:
    if _is_remote_task(task):
        return task
    if isinstance(task, RunPart):
        return replace(task, path=str(Path(task.path).absolute()))
    return str(Path(task).absolute())


def _processes(tasks: Sequence[Task]) -> int:
    """Return the number of processes that have enough to read to be useful."""
    if any(map(_is_remote_task, tasks)):
        return min(cores(), len(tasks))
    size = sum(file.stat().st_size for task in tasks for file in _files(task) if file.is_file())
    return max(1, min(cores(), size // BYTES_PER_PROCESS))


def _files(task: Task) -> list[Path]:
    if isinstance(task, RunPart):
        return [Path(task.path, artifact) for artifact in task.artifacts()]
    return [Path(task)]


def _collected(
    done: Iterator[tuple[int, TaskResult | LostTask]], tasks: Sequence[Task], *, whole: bool
) -> list[TaskResult]:
    """Return the results by task; evidence for single traces is removed as soon as there are two."""
    results: dict[int, TaskResult] = {}
    examined = 0
    for index, item in done:
        if isinstance(item, LostTask):
            item = TaskResult(skipped=_lost(tasks[index], item))
        mine = sum(isinstance(trace, Examined) for trace in item.traces)
        if examined and mine and not whole:
            item = replace(item, traces=tuple(map(_trimmed, item.traces)))
        examined += mine
        results[index] = item
    return [results[index] for index in range(len(tasks))]


def _trimmed(read_trace: ReadTrace) -> ReadTrace:
    from perfscope.analyzers.digest import trim_evidence

    return trim_evidence(read_trace) if isinstance(read_trace, Examined) else read_trace


def _lost(task: Task, lost: LostTask) -> Skipped:
    if _is_remote_task(task):
        path = _scale_out().shown_task(task)
    else:
        path = f"{task.path}/{task.name()}" if isinstance(task, RunPart) else task
    reason = f"the process that read it {lost.why} (out of memory?){see('recording too large')}"
    return Skipped(path=path, reason=reason, broken=True)
