"""Loading of traces from paths: discover sources, divide them into tasks, read each, and combine the results.

`load` keeps all tables; `judge.judge_paths` does the same steps with rules, in processes or on a cluster.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.readers import FORMAT_WORDS, READERS
from perfscope.analyzers.readers.file_bytes import describe_file, named_rank, read_head
from perfscope.analyzers.readers.paths import error_text, resolve
from perfscope.analyzers.readers.rocprof.tables import belongs_to_other
from perfscope.analyzers.readers.run.parts import DividedRun, RunPart, divide_run, trace_order, why_nothing_captured
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Run, dump, list_numbers, missing_ranks
from perfscope.model.errors import DataError, UsageError, see
from perfscope.model.plugins import named
from perfscope.model.trace import Trace
from perfscope.model.untrusted_text import sanitize

COMMONEST = "kineto"
"""Format that is tried first, because its traces need no other reader."""

MOST_FILES = 20_000
"""Maximum number of files of a folder: more than the ranks of the largest jobs, fewer than a home directory."""

MOST_NAMED = 3
"""Files left out that are listed by name; of more, only the number is shown."""


class Skipped(Struct, frozen=True, kw_only=True):
    """A file of a folder that was left out. ``broken``: it is a trace, but corrupt."""

    path: str
    reason: str
    broken: bool
    other_job: bool = False
    """It was read, but it is not of the job that is analyzed."""

    def error(self) -> DataError:
        """Return the reason as an error that begins with the path."""
        return DataError(self.reason if self.reason.startswith(self.path) else f"{self.path}: {self.reason}")


Task = str | RunPart
"""Unit of reading: a file (or a folder that is one source) by its path, or a part of a run."""

Unit = str | DividedRun | Skipped
"""Part of an input: one task, a run, or a run whose manifest is corrupt."""


class Input(Struct, frozen=True, kw_only=True):
    """Content of a path. ``folder``: its units are below it."""

    path: str
    units: tuple[Unit, ...]
    folder: bool = False
    ranks: frozenset[int] | None = None
    """Selected ranks; ``None`` for all. The units leave out those known to be of other ranks."""

    def tasks(self) -> tuple[Task, ...]:
        """Return the tasks in order."""
        return tuple(task for unit in self.units for task in _tasks_of(unit))


class ReadTrace(Struct, frozen=True, kw_only=True):
    """A trace of a task. Further processing adds fields."""

    trace: Trace


class TaskResult(Struct, frozen=True, kw_only=True):
    """Traces of a task, or why it was not read."""

    traces: tuple[ReadTrace, ...] = ()
    skipped: Skipped | None = None


class Loaded(Struct, frozen=True, kw_only=True):
    """Traces below some paths, by rank and then path, and what was skipped.

    Compiled programs without a recording are one trace together.
    """

    results: tuple[ReadTrace, ...]
    skipped: tuple[Skipped, ...] = ()
    manifest: Run | None = None
    """Manifest, if all traces are of one run."""

    @property
    def run(self) -> Mapping[str, Any] | None:
        """Manifest as a report shows it."""
        return None if self.manifest is None else _manifest(self.manifest)

    @property
    def traces(self) -> tuple[Trace, ...]:
        """Traces without the tasks' other fields."""
        return tuple(result.trace for result in self.results)


_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://")


def is_remote(path: object) -> bool:
    """Return whether a path begins with a scheme (``s3://bucket/traces``)."""
    return isinstance(path, str | Path) and _SCHEME.match(str(path)) is not None


def load_all(path: str | Path) -> list[Trace]:
    """Return the traces of a run directory, ``latest``, a trace file, or a folder (all below it), by rank.

    ``DataError`` if the path is missing, unreadable, empty, corrupt, or of an unknown format.
    """
    return list(load_paths([path]).traces)


def load_one(path: str | Path) -> Trace:
    """Return the single trace at ``path``; ``UsageError`` if there are several, ``DataError`` as in ``load``."""
    traces = load_all(path)
    if len(traces) > 1:
        raise UsageError(f"{path}: holds {len(traces)} traces; perfscope.load_all() gives them all")
    return traces[0]


def load_path(path: str | Path) -> Loaded:
    """Load a path like ``load``, with the reasons for skipped files."""
    return load_paths([path])


def load_paths(paths: Sequence[str | Path], ranks: frozenset[int] | None = None) -> Loaded:
    """Load all paths, each trace once, with all tables. ``DataError`` as in ``load``.

    ``ranks``: only these, as in ``of_ranks``.
    """
    inputs, reports = set_aside([of_ranks(discover(path), ranks) for path in paths])
    return assemble(inputs, [read_task(task, reports) for one in inputs for task in one.tasks()])


# Discovery: the content of a path, and its division into tasks.


def different(paths: Sequence[str | Path]) -> tuple[str | Path, ...]:
    """Return ``paths`` without links to others of them: ``runs/*`` includes ``latest``, a link to the newest run."""
    places: dict[str, str | Path] = {}
    for path in sorted(paths, key=lambda path: Path(path).is_symlink()):
        places.setdefault(os.path.realpath(path), path)
    return tuple(path for path in paths if path in places.values())


def discover(path: str | Path) -> Input:
    """Return the content of ``path``. ``DataError`` for nothing, too much, several runs, or an unknown format."""
    folder = resolve(path)
    try:
        reader = reader_of(folder)
    except OSError as error:
        raise DataError(f"{path}: {error_text(error)}") from error
    if reader is not None:
        return Input(path=str(folder), units=(_run_at(folder) or str(folder),))
    if folder.is_dir():
        return Input(path=str(folder), units=_units_below(folder), folder=True)
    words = {**named("format_words"), **FORMAT_WORDS}
    known = dict.fromkeys(words.get(name, name) for name in known_formats())
    raise DataError(f"{path}: {describe_file(folder)}; perfscope reads: {', '.join(known)}{see('I have a trace')}")


def reader_of(path: Path) -> ModuleType | None:
    """Return the reader of ``path``, or ``None``. ``OSError`` if it cannot be opened."""
    if not path.is_dir() and not path.is_file():
        return None
    head = b"" if path.is_dir() else read_head(path)
    for reader in _readers():
        if reader.sniff(path, head):
            return reader
    return None


def _readers() -> Iterator[ModuleType]:
    """Reader modules: the commonest first, then by name, those of plug-ins included; each is imported in its turn."""
    homes = {**named("readers"), **READERS}
    for _, home in sorted(homes.items(), key=lambda item: (item[0] != COMMONEST, item[0])):
        yield importlib.import_module(home)


def known_formats() -> tuple[str, ...]:
    """Return the names of all readable formats, sorted."""
    return tuple(sorted({*READERS, *named("readers")}))


def set_aside(inputs: Sequence[Input]) -> tuple[list[Input], tuple[str, ...]]:
    """Return the inputs without reports on kernels of the other inputs, and the paths of these reports.

    Their reader has ``JOINS``, the endings of such files, and ``attach(trace, path)``. Reports alone, and files of a
    folder that cannot be read, stay inputs. ``DataError`` for a report that was named and cannot be read.
    """
    endings = tuple({ending for reader in _report_readers() for ending in reader.JOINS})
    aside: list[str] = []
    kept = []
    for one in inputs:
        found = [unit for unit in one.units if isinstance(unit, str) and _is_report(unit, endings, folder=one.folder)]
        aside += found
        units = tuple(unit for unit in one.units if unit not in found)
        kept += [replace(one, units=units)] if units else []
    if not aside or not any(isinstance(unit, DividedRun | str) for one in kept for unit in one.units):
        return list(inputs), ()
    return kept, tuple(aside)


def _report_readers() -> Iterator[ModuleType]:
    return (reader for reader in map(importlib.import_module, _report_homes()) if hasattr(reader, "JOINS"))


def _report_homes() -> tuple[str, ...]:
    """Modules of readers that plug-ins added; the core's own read recordings."""
    return tuple(sorted(set(named("readers").values())))


def _is_report(unit: str, endings: tuple[str, ...], *, folder: bool) -> bool:
    """Whether a file is a report on kernels of other recordings; those of a folder only if they can be read."""
    if is_remote(unit) or (folder and not unit.endswith(endings)):
        return False
    with _as_data_error(unit):
        reader = reader_of(Path(unit))
        if reader is None or not hasattr(reader, "JOINS"):
            return False
        try:
            reader.read(Path(unit))
        except DataError:
            if folder:
                return False
            raise
    return True


def of_ranks(given: Input, ranks: frozenset[int] | None) -> Input:
    """Return the input without files and parts of a run that are known to be of other ranks; they are not opened.

    A manifest or a file name has the rank. Ranks that only the content has are left out after reading. ``UsageError``
    if nothing remains.
    """
    if ranks is None:
        return given
    units = tuple(unit for one in given.units if (unit := _unit_of_ranks(one, ranks)) is not None)
    if not units:
        raise UsageError(f"{given.path}: nothing of {_named(ranks)} (--ranks)")
    return replace(given, units=units, ranks=ranks)


def _unit_of_ranks(unit: Unit, ranks: frozenset[int]) -> Unit | None:
    if isinstance(unit, DividedRun):
        parts = tuple(part for part in unit.parts if any(process.rank in ranks for process in part.processes))
        return replace(unit, parts=parts) if parts else None
    if isinstance(unit, Skipped):
        return unit
    rank, _ = named_rank(Path(unit))
    return unit if rank is None or rank in ranks else None


def _named(ranks: frozenset[int]) -> str:
    return list_numbers("rank", sorted(ranks))


def _run_at(path: Path) -> DividedRun | None:
    """Return the parts of the run at ``path``, or ``None``. ``DataError`` if its manifest is corrupt."""
    with _as_data_error(path):
        return divide_run(path) if path.is_dir() and run_folders.is_run(path) else None


def _units_below(folder: Path) -> tuple[Unit, ...]:
    """Return the possible traces below a folder, sorted. ``DataError`` for too many files, or several runs."""
    places = tuple(_candidates(folder))
    runs = [path for path in places if path.is_dir()]
    if len(runs) > 1:
        raise DataError(f"{folder}: {_which_runs(runs)}")
    return tuple(map(_unit, places))


def _which_runs(runs: Sequence[Path]) -> str:
    """The newest runs of a folder, and the command that analyzes one."""
    newest = sorted(runs, key=lambda run: (run.stat().st_mtime, run.name), reverse=True)
    names = ", ".join(run.name for run in newest[:MOST_NAMED])
    more = f" and {len(runs) - MOST_NAMED:,} more" if len(runs) > MOST_NAMED else ""
    command = f"`perfscope analyze {shlex.quote(str(newest[0]))}`"
    return f"{len(runs):,} runs, newest first: {names}{more}; name one, or `latest`: {command}"


def _unit(path: Path) -> Unit:
    try:
        return _run_at(path) or str(path)
    except DataError as error:
        return Skipped(path=str(path), reason=str(error).removeprefix(f"{path}: "), broken=True)


def _candidates(folder: Path) -> Iterator[Path]:
    """Yield files below ``folder`` and folders that are one source (a run), sorted.

    Hidden files and links to folders are skipped, so that ``latest`` is not read twice.
    """
    count = 0
    for root, folders, files in os.walk(folder):
        whole = [name for name in sorted(folders) if _is_source(Path(root, name))]
        folders[:] = sorted(name for name in folders if name not in whole and not name.startswith("."))
        yield from (Path(root, name) for name in whole)
        for name in sorted(files):
            if name.startswith("."):
                continue
            count += 1
            if count > MOST_FILES:
                raise DataError(f"{folder}: more than {MOST_FILES:,} files below it; name a narrower folder")
            if not belongs_to_other(Path(root, name)):
                yield Path(root, name)


def _is_source(folder: Path) -> bool:
    return not folder.is_symlink() and not folder.name.startswith(".") and reader_of(folder) is not None


def _tasks_of(unit: Unit) -> tuple[Task, ...]:
    if isinstance(unit, Skipped):
        return ()
    return (unit,) if isinstance(unit, str) else unit.parts


# Reading of one task. Errors of a reader on corrupt data become one line.


def read_task(task: Task, reports: Sequence[str] = ()) -> TaskResult:
    """Return the traces of a task on this machine, with all tables. ``reports``: files on kernels of the traces."""
    path = f"{task.path}/{task.name()}" if isinstance(task, RunPart) else task
    try:
        with _as_data_error(path):
            traces = _read_part(task) if isinstance(task, RunPart) else _read_place(Path(task))
    except DataError as error:
        reason = str(error).removeprefix(f"{path}: ")
        if isinstance(task, RunPart):
            reason = reason.removeprefix(f"{task.path}/")
        return TaskResult(skipped=Skipped(path=path, reason=reason, broken=True))
    if traces is None:
        return TaskResult(skipped=Skipped(path=path, reason=describe_file(Path(path)), broken=False))
    for report in reports:
        reader: Any = reader_of(Path(report))
        traces = [reader.attach(trace, Path(report)) if len(trace.rows["kernels"]) else trace for trace in traces]
    return TaskResult(traces=tuple(ReadTrace(trace=trace) for trace in traces))


def _read_part(part: RunPart) -> Sequence[Trace]:
    """Return the traces of one part of a run; empty if it captured nothing."""
    result: Sequence[Trace] = importlib.import_module(READERS["run"]).read_part(part)
    return result


def _read_place(path: Path) -> Sequence[Trace] | None:
    """Return the traces of a file, or of a folder that is one source; ``None`` for a file that is not a trace."""
    reader = reader_of(path)
    if reader is None:
        return () if path.is_dir() else None
    read: Trace | Sequence[Trace] = reader.read(path)
    traces = (read,) if isinstance(read, Trace) else tuple(read)
    if not traces:
        raise DataError(f"{path}: no trace in it")
    return (_with_named_rank(traces[0], path),) if len(traces) == 1 else traces


def _with_named_rank(trace: Trace, path: Path) -> Trace:
    """Return the trace with the rank in its file or folder name, if its content has none."""
    if trace.source.rank is not None or trace.source.programs is not None:
        return trace
    rank, origin = named_rank(path, of_several=len(trace.rows["collectives"]) > 0)
    if rank is None:
        return trace
    source = msgspec.structs.replace(trace.source, rank=rank, rank_source=origin)
    return msgspec.structs.replace(trace, source=source)


_CORRUPT: Mapping[type[Exception], str] = {
    OverflowError: "a number in it is too large",
    UnicodeError: "a text in it is not UTF-8",
    ValueError: "{}",
    RecursionError: "it is nested too deeply",
    EOFError: "it ends too early",
    KeyError: "it lacks {}",
    IndexError: "it refers to something that is not in it",
    LookupError: "it lacks {}",
    TypeError: "a value is of an unexpected type",
    AttributeError: "a value is of an unexpected type",
    ArithmeticError: "its numbers make no sense",
}
"""Exception of a reader on a corrupt file -> description; the first match is used."""


@contextmanager
def _as_data_error(place: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{place}: {error_text(error)}") from error
    except tuple(_CORRUPT) as error:
        what = next(text for kind, text in _CORRUPT.items() if isinstance(error, kind))
        raise DataError(f"{place}: corrupt or unsupported file: {what.format(error)}") from error


# Combination of the results: of one input, then of all.


ChooseJob = Callable[[Sequence[Trace]], tuple[int, ...]]
"""Returns the indices of the traces of a folder that are analyzed together; see `ranks.main_job`."""


def assemble(inputs: Sequence[Input], results: Iterable[TaskResult], choose: ChooseJob | None = None) -> Loaded:
    """Combine the results of the inputs' tasks in their order; a trace of several inputs occurs once.

    ``choose``: selects the traces of each folder, ``None`` for all. ``DataError`` for an input without a trace. With
    several inputs there is no single manifest.
    """
    remaining = iter(results)
    parts = [_assemble_input(one, [next(remaining) for _ in one.tasks()], choose) for one in inputs]
    seen: set[tuple[Path, int | None]] = set()
    traces: list[ReadTrace] = []
    for part in parts:
        traces += [result for result in part.results if _identity(result.trace) not in seen]
        seen.update(_identity(result.trace) for result in part.results)
    chosen = next((one.ranks for one in inputs if one.ranks is not None), None)
    traces = _with_missing_ranks(traces) if chosen is None else _with_chosen_ranks(traces, chosen)
    return Loaded(
        results=_join_program_files(traces, ", ".join(trace.trace.source.path for trace in traces)),
        skipped=tuple(skipped for part in parts for skipped in part.skipped),
        manifest=parts[0].manifest if len(parts) == 1 else None,
    )


def _identity(trace: Trace) -> tuple[Path, int | None]:
    return Path(trace.source.path).absolute(), trace.source.rank


def _assemble_input(given: Input, results: Sequence[TaskResult], choose: ChooseJob | None) -> Loaded:
    remaining = iter(results)
    task_results: list[TaskResult] = []
    for unit in given.units:
        mine = [next(remaining) for _ in _tasks_of(unit)]
        if isinstance(unit, Skipped):
            task_results.append(TaskResult(skipped=unit))
        else:
            task_results += mine if isinstance(unit, str) else _run_results(unit, mine)
    traces = [trace for result in task_results for trace in result.traces]
    skipped = tuple(result.skipped for result in task_results if result.skipped is not None)
    if given.ranks is not None:
        traces = [trace for trace in traces if trace.trace.source.rank in given.ranks]
        if not traces and not any(file.broken for file in skipped):
            raise UsageError(f"{given.path}: nothing of {_named(given.ranks)} (--ranks)")
    runs = [unit for unit in given.units if isinstance(unit, DividedRun)]
    if not traces:
        raise _no_trace(given, skipped)
    if given.folder:
        traces = list(_join_program_files(sorted(traces, key=_by_rank), given.path))
    elif runs:
        traces.sort(key=lambda trace: trace_order(trace.trace))
    lost = [f"{Path(file.path).name} was not read: {file.reason}" for file in skipped if file.broken]
    if given.folder and choose is not None:
        traces, others = _of_one_job(traces, choose)
        skipped += others
        lost += [left_out_sentence(others)] if others else []
    traces[0] = _noted(traces[0], *lost)
    return Loaded(results=tuple(traces), skipped=skipped, manifest=runs[0].run if runs else None)


def _of_one_job(traces: Sequence[ReadTrace], choose: ChooseJob) -> tuple[list[ReadTrace], tuple[Skipped, ...]]:
    """Return the traces of the chosen job, and the files of all others, each once."""
    chosen = frozenset(choose([trace.trace for trace in traces]))
    kept = [trace for index, trace in enumerate(traces) if index in chosen]
    files = dict.fromkeys(trace.trace.source.path for index, trace in enumerate(traces) if index not in chosen)
    reason = "it is not of the job that is analyzed"
    return kept, tuple(Skipped(path=path, reason=reason, broken=False, other_job=True) for path in files)


def left_out_sentence(skipped: Sequence[Skipped]) -> str:
    """Return the sentence that names the files of other jobs; at least one."""
    files = [sanitize(Path(file.path).name) for file in skipped if file.other_job]
    more = f" and {len(files) - MOST_NAMED} more" if len(files) > MOST_NAMED else ""
    return (
        f"the folder has more than one job; left out: {', '.join(files[:MOST_NAMED])}{more}; "
        "`perfscope analyze FILE` judges each"
    )


def _run_results(divided: DividedRun, results: Sequence[TaskResult]) -> Sequence[TaskResult]:
    """Return the results of a run's parts, or the reason for their absence."""
    if any(result.traces or result.skipped is not None for result in results):
        return results
    reason = why_nothing_captured(divided.run)
    return [TaskResult(skipped=Skipped(path=divided.path, reason=reason, broken=True))]


def _no_trace(given: Input, skipped: Sequence[Skipped]) -> DataError:
    if not given.folder:
        return skipped[0].error() if skipped else DataError(f"{given.path}: no trace in it")
    broken = [file for file in skipped if file.broken]
    if broken:
        return DataError(f"{given.path}: no readable trace: {Path(broken[0].path).name}: {broken[0].reason}")
    if skipped:
        return DataError(f"{given.path}: no trace in it; {Path(skipped[0].path).name} is {skipped[0].reason}")
    return DataError(f"{given.path}: an empty folder")


def _manifest(run: Run) -> dict[str, Any]:
    """Return a run's manifest for a report, without the step times, which the traces hold."""
    manifest: dict[str, Any] = json.loads(dump(run))
    for process in manifest["processes"]:
        for steps in ("untraced_step_ns", "untraced_step_tokens", "untraced_step_idle_rows"):
            process.pop(steps, None)
    return manifest


def _noted(trace: ReadTrace, *notes: str) -> ReadTrace:
    return replace(trace, trace=trace.trace.noted(*notes)) if notes else trace


def _with_missing_ranks(traces: Sequence[ReadTrace]) -> list[ReadTrace]:
    """Add to the first of a run's traces which ranks of the world have no trace."""
    noted = list(traces)
    sources = {index: trace.trace.source for index, trace in enumerate(traces)}
    ranked = {index: source for index, source in sources.items() if source.format == "run" and source.rank is not None}
    if ranked:
        ranks = {source.rank for source in ranked.values() if source.rank is not None}
        note = missing_ranks(ranks, max(source.world_size or 0 for source in ranked.values()))
        if note is not None:
            first = min(ranked)
            noted[first] = _noted(noted[first], note)
    return noted


def _with_chosen_ranks(traces: Sequence[ReadTrace], ranks: frozenset[int]) -> list[ReadTrace]:
    """Add to the first trace which ranks were selected, and which of them are missing."""
    absent = sorted(ranks - {trace.trace.source.rank for trace in traces if trace.trace.source.rank is not None})
    notes = [f"only {_named(ranks)} of the job {'was' if len(ranks) == 1 else 'were'} read (--ranks)"]
    notes += [f"{list_numbers('rank', absent)} left nothing here"] if absent else []
    return [_noted(traces[0], *notes), *traces[1:]]


def _join_program_files(traces: Sequence[ReadTrace], path: str) -> tuple[ReadTrace, ...]:
    """Join several files of compiled programs as one trace, because they are not ranks.

    Return other traces unchanged.
    """
    if len(traces) > 1 and all(trace.trace.source.programs is not None for trace in traces):
        from perfscope.analyzers.readers.hlo.program import join_programs

        return (ReadTrace(trace=join_programs([trace.trace for trace in traces], path)),)
    return tuple(traces)


def _by_rank(trace: ReadTrace) -> tuple[bool, int, str]:
    rank = trace.trace.source.rank
    return (rank is None, rank or 0, trace.trace.source.path)
