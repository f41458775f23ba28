"""From a path to traces: a run, a trace file, or a folder of them; the reader is found by content."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from perfscope.analyzers.readers import READERS
from perfscope.analyzers.readers.file_bytes import describe_file, read_head
from perfscope.analyzers.readers.hlo.program import holds_programs_only, join_programs
from perfscope.analyzers.readers.run.parts import DividedRun, RunPart, divide_run, sort_traces, why_nothing_captured
from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Run, dump, missing_ranks
from perfscope.model.errors import DataError, UsageError
from perfscope.model.trace import Trace

ENTRY_POINTS = "perfscope.readers"

MOST_FILES = 20_000
"""Files a folder may hold: more than ranks of the largest jobs, fewer than a home directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A file of a folder that was not read. ``broken``: it is a trace, but corrupt."""

    path: str
    reason: str
    broken: bool


ReadResult = tuple[Sequence[Trace], Skipped | None]
"""The traces of something, and why it was not read if it was not."""

Task = str | RunPart
"""What is read by itself: a file (or a folder that is one source) by its path, or a part of a run."""

Unit = str | DividedRun | Skipped
"""What stands below a folder: one task, a run, or a run whose manifest is corrupt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The traces below a path, by rank and then path, and what else lay there.

    Compiled programs without a recording are one trace together.
    """

    traces: tuple[Trace, ...]
    skipped: tuple[Skipped, ...] = ()
    run: Mapping[str, Any] | None = None
    """The manifest, where all of it is one run."""


def load(path: str | Path) -> list[Trace]:
    """The traces of a run directory, ``latest``, a trace file, or a folder (all below it).

    ``DataError``: nothing there, no permission, empty, corrupt, or of no known format.
    """
    return list(load_path(path).traces)


def load_one(path: str | Path) -> Trace:
    """The one trace at ``path``; ``AskedWronglyError`` if there are several, ``DataError`` as in ``load``."""
    traces = load(path)
    if len(traces) > 1:
        raise UsageError(f"{path}: holds {len(traces)} traces; perfscope.load_all() gives them all")
    return traces[0]


def load_all(path: str | Path) -> list[Trace]:
    """All traces at or below ``path``, one for each rank, by rank; ``DataError`` as in ``load``."""
    return load(path)


def load_path(path: str | Path, *, alone: bool = True) -> Loaded:
    """As ``load``, with what was skipped in a folder and why. ``alone``: no other path holds ranks of its job."""
    loaded = _load_path(path)
    if alone:
        note_missing_ranks(loaded.traces)
    return loaded


def note_missing_ranks(traces: Sequence[Trace]) -> None:
    """Have the first of a run's traces say which ranks of the world there is none of."""
    ranked = [trace for trace in traces if trace.source.format == "run" and trace.source.rank is not None]
    if not ranked:
        return
    ranks = {trace.source.rank for trace in ranked if trace.source.rank is not None}
    note = missing_ranks(ranks, max((trace.source.world_size or 0 for trace in ranked), default=0))
    if note is not None:
        ranked[0].source = replace(ranked[0].source, notes=(*ranked[0].source.notes, note))


def _load_path(path: str | Path) -> Loaded:
    place = resolve(path)
    try:
        reader = reader_of(place)
    except OSError as error:
        raise DataError(f"{path}: {_error_text(error)}") from error
    if reader is not None:
        divided = run_at(place)
        if divided is not None:
            return assemble_run(divided, [read_part(part) for part in divided.parts])
        return Loaded(traces=_read(reader, place))
    if place.is_dir():
        return _load_folder(place)
    raise DataError(f"{path}: {describe_file(place)}; perfscope reads: {', '.join(known_formats())}")


def resolve(path: str | Path) -> Path:
    """Where ``path`` leads: itself, or the run of that name (``latest``, or how its id begins). It exists."""
    place = Path(path)
    try:
        if place.exists():
            return place
        runs = [run.name for run in run_folders.kept_directories(Path(run_folders.RUNS_FOLDER))]
    except (OSError, ValueError) as error:  # a name too long, or with a null byte
        raise DataError(f"{path}: {_error_text(error)}") from error
    if str(path) == run_folders.LATEST or (place.name and any(name.startswith(str(path)) for name in runs)):
        return run_folders.find(str(path))
    raise DataError(f"{path}: no such file or folder")


def reader_of(place: Path) -> ModuleType | None:
    """The reader that knows what lies at ``place``, or ``None``. ``OSError`` if it cannot be opened."""
    if not place.is_dir() and not place.is_file():
        return None
    head = b"" if place.is_dir() else read_head(place)
    for reader in _readers():
        if reader.sniff(place, head):
            return reader
    return None


def _readers() -> Iterator[ModuleType]:
    """Reader modules: ours by name, then those of installed packages; each is imported when it is its turn."""
    for _, home in sorted(READERS.items()):
        yield importlib.import_module(home)
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        if entry.name not in READERS:
            yield entry.load()


def known_formats() -> tuple[str, ...]:
    """Names of all formats that can be read, sorted."""
    return tuple(sorted({*READERS, *(entry.name for entry in entry_points(group=ENTRY_POINTS))}))


def _read(reader: ModuleType, place: Path) -> tuple[Trace, ...]:
    """The trace, or those of a run's ranks. What a reader stumbles over in corrupt data becomes one line."""
    with _as_data_error(place):
        read: Trace | Sequence[Trace] = reader.read(place)
    traces = (read,) if isinstance(read, Trace) else tuple(read)
    if not traces:
        raise DataError(f"{place}: no trace in it")
    return traces


@contextmanager
def _as_data_error(place: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{place}: {_error_text(error)}") from error
    except (ValueError, LookupError, TypeError, ArithmeticError, AttributeError, RecursionError, EOFError) as error:
        raise DataError(f"{place}: corrupt or unsupported file: {type(error).__name__}: {error}") from error


def run_at(place: Path) -> DividedRun | None:
    """The parts of the run at ``place``, ``None`` where no run is. ``DataError`` if its manifest is corrupt."""
    with _as_data_error(place):
        return divide_run(place) if place.is_dir() and run_folders.is_run(place) else None


def read_part(part: RunPart) -> ReadResult:
    """The traces of one part of a run (none if it captured nothing), and why it was not read if it was not."""
    reader = importlib.import_module(READERS["run"])
    path = f"{part.path}/{part.name()}"
    try:
        with _as_data_error(path):
            return tuple(reader.read_part(part)), None
    except DataError as error:
        reason = str(error).removeprefix(f"{path}: ").removeprefix(f"{part.path}/")
        return (), Skipped(path=path, reason=reason, broken=True)


def assemble_run(divided: DividedRun, read: Sequence[ReadResult]) -> Loaded:
    """What was read of the parts of a run as one. ``DataError`` if there is no trace among it."""
    held = _run_results(divided, read)
    traces = sort_traces(trace for found, _ in held for trace in found)
    skipped = tuple(one for _, one in held if one is not None)
    if not traces:
        raise DataError(f"{skipped[0].path}: {skipped[0].reason}")
    _note_unread(traces, skipped)
    return Loaded(traces=tuple(traces), skipped=skipped, run=_manifest(divided.run))


def _run_results(divided: DividedRun, read: Sequence[ReadResult]) -> Sequence[ReadResult]:
    """What was read of its parts; or why there is nothing at all."""
    if any(found or lost is not None for found, lost in read):
        return read
    return [((), Skipped(path=divided.path, reason=why_nothing_captured(divided.run), broken=True))]


def _manifest(run: Run) -> dict[str, Any]:
    """What a report shows of a run: its manifest without the step times, which the traces hold."""
    manifest: dict[str, Any] = json.loads(dump(run))
    for process in manifest["processes"]:
        del process["untraced_step_ns"]
    return manifest


def _note_unread(traces: Sequence[Trace], skipped: Sequence[Skipped]) -> None:
    """Have the first trace say what was not read."""
    lost = tuple(f"{Path(one.path).name} was not read: {one.reason}" for one in skipped if one.broken)
    traces[0].source = replace(traces[0].source, notes=(*traces[0].source.notes, *lost))


def _load_folder(folder: Path) -> Loaded:
    units = units_of(folder)
    return assemble_folder(folder, units, [read_task(task) for unit in units for task in tasks_of(unit)])


def units_of(folder: Path) -> tuple[Unit, ...]:
    """What may be traces below a folder, sorted. ``DataError``: too many files, or several runs."""
    return tuple(map(_unit, folder_candidates(folder)))


def _unit(place: Path) -> Unit:
    try:
        divided = run_at(place)
    except DataError as error:
        return Skipped(path=str(place), reason=str(error).removeprefix(f"{place}: "), broken=True)
    return str(place) if divided is None else divided


def tasks_of(unit: Unit) -> tuple[Task, ...]:
    """What of it is read by itself."""
    if isinstance(unit, Skipped):
        return ()
    return (unit,) if isinstance(unit, str) else unit.parts


def read_task(task: Task) -> ReadResult:
    """The traces of a task, and why it was not read if it was not."""
    return read_part(task) if isinstance(task, RunPart) else read_in_folder(Path(task))


def folder_candidates(folder: Path) -> tuple[Path, ...]:
    """What may be traces below a folder, sorted. ``DataError``: too many files, or several runs."""
    places = tuple(_candidates(folder))
    runs = [place for place in places if place.is_dir()]
    if len(runs) > 1:
        raise DataError(f"{folder}: holds several runs ({runs[0].name}, {runs[1].name} ...); name one, or `latest`")
    return places


def read_in_folder(place: Path) -> ReadResult:
    """The traces at one of ``folder_places``, and why it was not read if it was not."""
    try:
        reader = reader_of(place)
        if reader is not None:
            return _read(reader, place), None
        return (), None if place.is_dir() else Skipped(path=str(place), reason=describe_file(place), broken=False)
    except OSError as error:
        return (), Skipped(path=str(place), reason=_error_text(error), broken=True)
    except DataError as error:
        return (), Skipped(path=str(place), reason=str(error).removeprefix(f"{place}: "), broken=True)


def assemble_folder(folder: Path | str, units: Sequence[Unit], read: Iterable[ReadResult]) -> Loaded:
    """What was read of the tasks of a folder's units, in their order, as one. ``DataError`` if there is no trace."""
    reads = iter(read)
    held: list[ReadResult] = []
    for unit in units:
        mine = [next(reads) for _ in tasks_of(unit)]
        if isinstance(unit, Skipped):
            held.append(((), unit))
        else:
            held += mine if isinstance(unit, str) else _run_results(unit, mine)
    traces = [trace for found, _ in held for trace in found]
    skipped = [one for _, one in held if one is not None]
    if not traces:
        raise DataError(f"{folder}: {_why_no_trace(skipped)}")
    traces.sort(key=_by_rank)
    traces = list(join_program_files(traces, str(folder)))
    _note_unread(traces, skipped)
    runs = [unit for unit in units if isinstance(unit, DividedRun)]
    return Loaded(traces=tuple(traces), skipped=tuple(skipped), run=_manifest(runs[0].run) if runs else None)


def join_program_files(traces: Sequence[Trace], path: str) -> tuple[Trace, ...]:
    """Several files of compiled programs and nothing else as one trace: they are no ranks. Others as they are."""
    if len(traces) > 1 and all(map(holds_programs_only, traces)):
        return (join_programs(traces, path),)
    return tuple(traces)


def _by_rank(trace: Trace) -> tuple[bool, int, str]:
    rank = trace.source.rank
    return (rank is None, rank or 0, trace.source.path)


def _candidates(folder: Path) -> Iterator[Path]:
    """Files below ``folder`` and folders that are one source (a run), sorted.

    Hidden ones and links to folders are left alone: ``latest`` would be read twice.
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
            yield Path(root, name)


def _is_source(folder: Path) -> bool:
    return not folder.is_symlink() and not folder.name.startswith(".") and reader_of(folder) is not None


def _why_no_trace(skipped: list[Skipped]) -> str:
    broken = [one for one in skipped if one.broken]
    if broken:
        return f"no readable trace: {Path(broken[0].path).name}: {broken[0].reason}"
    if skipped:
        return f"no trace in it; {Path(skipped[0].path).name} is {skipped[0].reason}"
    return "an empty folder"


def _error_text(error: OSError | ValueError) -> str:
    """The reason alone: the path stands before it already."""
    text = error.strerror if isinstance(error, OSError) else str(error)
    return (text or type(error).__name__).lower()
