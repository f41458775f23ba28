"""The folder that keeps runs: make one, write it so that it always opens, find, list and prune."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from perfscope.model.documents.run import (
    PROCESS_FILE,
    RUN_FILE,
    TASK_FILE,
    Manifest,
    Process,
    Run,
    dump,
    load_process,
    load_run,
    merge_tasks,
)
from perfscope.model.errors import DataError, NotStartedError, UsageError, did_you_mean
from perfscope.model.files import write_atomically

if TYPE_CHECKING:
    from perfscope.model.documents.run import Run


RUNS_FOLDER = "perfscope-runs"
"""Folder of runs, in the folder a program was started in."""
LATEST = "latest"
COMPILED_FILE = "compile.json"
"""The manifest that `perfscope compile` wrote, next to runs and listed with them."""
MAX_RUN_FILES = 20_000
"""As many as ``analyze`` reads below a folder."""
_WRITTEN_FROM_THE_REST = ("report.",)
"""Beginnings of the names of files in a run that are made from the others."""
TAGS_FILE = ".tags"
"""Names that a user gave a run, a line each."""
ALIVE_FILE = ".alive"
"""Locked while ``perfscope run`` is alive, so that a reader can distinguish a running run from a killed one.

Each further task of a job has its own file, with its number appended.
"""

STAMP = "%Y%m%d-%H%M%S"
STAMP_LENGTH = 15
_STAMPED = re.compile(r"\d{8}-\d")
_NAME = re.compile(r"[^A-Za-z0-9._-]+")
MOST_NAME = 40
"""Characters of a run's name: the directory stays readable in a listing."""
MOST_TRIES = 16
"""Directories tried before giving up; four random hex digits collide once in 65,536 within a second."""


def create(root: Path, name: str, *, latest: bool = True) -> Path:
    """A new, empty run directory ``<utc>-<name>-<4 hex>`` below ``root``, which ``latest`` points to if it is a run.

    It is made by an atomic mkdir, so it never existed before. ``NotStartedError`` if it cannot be made.
    """
    label = directory_label(name)
    try:
        root.mkdir(parents=True, exist_ok=True)
        for _ in range(MOST_TRIES):
            stamp = datetime.now(UTC).strftime(STAMP)
            directory = root / f"{stamp}-{label}-{os.urandom(2).hex()}"
            try:
                directory.mkdir()
            except FileExistsError:
                continue
            if latest:
                point_latest(root, directory.name)
            return directory
    except OSError as error:
        raise NotStartedError(f"{root}: no run directory can be made: {error.strerror or error}") from error
    raise NotStartedError(f"{root}: no free run directory after {MOST_TRIES} tries")


def directory_label(name: str) -> str:
    """``name`` as part of a directory's name: never empty, hidden or a path."""
    return _NAME.sub("-", name).strip("-.")[:MOST_NAME] or "run"


def write(directory: Path, run: Run) -> None:
    """Write the manifest of ``run``'s task in ``directory``; each task has its own file."""
    write_atomically(directory / manifest_name(run.task), dump(run))


def manifest_name(task: int) -> str:
    """The file of a task's manifest; that of the first is the run's."""
    return TASK_FILE.format(task) if task else RUN_FILE


def alive_name(task: int) -> str:
    """The file that a task holds locked while it lives."""
    return f"{ALIVE_FILE}-{task:05d}" if task else ALIVE_FILE


@contextlib.contextmanager
def alive(directory: Path, task: int = 0) -> Iterator[None]:
    """While this is held, a reader sees ``task`` of the run in ``directory`` as running."""
    with (directory / alive_name(task)).open("w") as stream:
        # Some network file systems have no locks; then a running run reads as killed until it ends.
        with contextlib.suppress(OSError):
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def is_alive(directory: Path, task: int = 0) -> bool:
    """Whether a ``perfscope run`` still holds the run in ``directory``."""
    return liveness(directory, task) is True


def liveness(directory: Path, task: int = 0) -> bool | None:
    """As `is_alive`; ``None`` if the file system has no locks."""
    try:
        with (directory / alive_name(task)).open() as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


def manifests(directory: Path) -> list[Path]:
    """The manifests of the tasks that write into ``directory``, by number."""
    first = directory / RUN_FILE
    return [*([first] if first.is_file() else []), *sorted(directory.glob(TASK_FILE.replace("{:05d}", "[0-9]*")))]


def task_of_file(manifest: Path) -> int:
    """The number of the task whose manifest that is."""
    digits = re.sub(r"\D", "", manifest.name)
    return int(digits) if digits else 0


def is_run(directory: Path) -> bool:
    """Whether ``directory`` looks like a run: it holds a manifest, be it of a task that is not the first."""
    return bool(manifests(directory))


def read(directory: Path) -> Run:
    """Read the run in ``directory``, with the last state of its processes and tasks; ``DataError`` if it is corrupt.

    A run still marked as running whose process is gone is reported as killed. Its notes have the state of all tasks but
    the first, and damaged files of tasks and processes.
    """
    files = manifests(directory) or [directory / RUN_FILE]
    first = load_run(files[0])
    tasks, damaged = _readable(files[1:], load_run)
    by_task = {task.task: task for task in (first, *tasks)}
    running = {number for number, task in by_task.items() if task.state == "running" and is_alive(directory, number)}
    processes, lost = read_processes(directory)
    run = merge_tasks(by_task, running, processes)
    return replace(run, notes=(*run.notes, *(note for note in (*damaged, *lost) if note not in run.notes)))


def read_processes(directory: Path) -> tuple[tuple[Process, ...], tuple[str, ...]]:
    """Processes of a run by rank, and a note for each process whose manifest is damaged."""
    processes, damaged = _readable(sorted(directory.glob(f"rank*/{PROCESS_FILE}")), load_process)
    return tuple(sorted(processes, key=lambda process: (process.rank, process.directory))), damaged


def _readable(files: Iterable[Path], load: Callable[[Path], Manifest]) -> tuple[list[Manifest], tuple[str, ...]]:
    """The readable manifests: a damaged one must not hide the other ranks'."""
    readable: list[Manifest] = []
    damaged = []
    for file in files:
        try:
            readable.append(load(file))
        except DataError as error:
            name = f"{file.parent.name}/{file.name}" if file.name == PROCESS_FILE else file.name
            damaged.append(f"{name} cannot be read: {str(error).removeprefix(f'{file}: ')}")
    return readable, tuple(damaged)


def is_compiled(directory: Path) -> bool:
    """Whether `perfscope compile` wrote ``directory``: programs, and no run of any."""
    return (directory / COMPILED_FILE).is_file()


def directories(root: Path) -> list[Path]:
    """Run directories below ``root``, the newest first."""
    return [path for path in kept_directories(root) if is_run(path)]


def kept_directories(root: Path) -> list[Path]:
    """Directories below ``root`` with a run or a compiled program, the newest first."""
    if not root.is_dir():
        return []
    results = [
        path
        for path in root.iterdir()
        if not path.is_symlink() and path.is_dir() and (is_run(path) or is_compiled(path))
    ]
    return sorted(results, key=_age, reverse=True)


def _age(directory: Path) -> tuple[str, str]:
    """The time at the beginning of a name; for another name (a job's) the age of its manifest."""
    if _STAMPED.match(directory.name):
        return directory.name[:STAMP_LENGTH], directory.name
    written = (manifests(directory) or [directory / COMPILED_FILE])[0].stat().st_mtime
    return datetime.fromtimestamp(written, UTC).strftime(STAMP), directory.name


def find(which: str, root: Path | None = None) -> Path:
    """The run directory that ``which`` names: a path, ``latest``, an id or the unique beginning of one, or a tag.

    ``DataError`` if no run matches, ``UsageError`` if several do.
    """
    folder = Path(RUNS_FOLDER) if root is None else root
    direct = Path(which)
    if is_run(direct) or is_compiled(direct):
        return direct
    if which == LATEST:
        if is_run(folder / LATEST) or is_compiled(folder / LATEST):
            return (folder / LATEST).resolve()
        raise DataError(f"{folder / LATEST}: no run was captured here yet; `perfscope run` makes one")
    kept = kept_directories(folder)
    candidates = [path for path in kept if which and path.name.startswith(which)]
    candidates = candidates or [path for path in kept if which in tags_of(path)]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise UsageError(f"{which}: {len(candidates)} runs begin so ({candidates[0].name}, {candidates[1].name} ...)")
    raise DataError(f"{which}: no such run in {folder}{did_you_mean(which, _names(folder))}")


def missing(path: str | Path) -> DataError:
    """The error for ``path``, which does not exist, with the runs and files that may have been meant."""
    folder, name = Path(path).parent, Path(path).name
    entries = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() and os.access(folder, os.R_OK) else []
    runs = _names(Path(RUNS_FOLDER)) if str(folder) == "." else []
    hint = did_you_mean(name, [*runs, *entries])
    return DataError(f"{path}: no such file or folder{hint}")


def _names(folder: Path) -> list[str]:
    """Names that select a run in ``folder``."""
    kept = kept_directories(folder)
    return [LATEST, *(path.name for path in kept), *(tag for path in kept for tag in tags_of(path))]


def is_named(which: str, root: Path) -> bool:
    """Whether ``which`` names a run below ``root``, or several that begin so."""
    kept = kept_directories(root)
    return which == LATEST or any(path.name.startswith(which) or which in tags_of(path) for path in kept)


def tags_of(directory: Path) -> tuple[str, ...]:
    """The tags of a run, in the order in which they were given."""
    try:
        return tuple((directory / TAGS_FILE).read_text(encoding="utf-8").split())
    except (OSError, ValueError):
        return ()


def tag(root: Path, which: str, name: str) -> Path:
    """Give a run a tag, which any other run below ``root`` loses. ``UsageError``: not a name of one word."""
    if directory_label(name) != name:
        raise UsageError(f"{name}: a tag has up to {MOST_NAME} letters, digits, dots, dashes and underscores")
    if name == LATEST or _STAMPED.match(name):
        raise UsageError(f"{name}: runs are called so; a tag needs another name")
    directory = find(which, root)
    untag(root, name)
    write_atomically(directory / TAGS_FILE, "\n".join([*tags_of(directory), name]).encode())
    return directory


def untag(root: Path, name: str) -> list[Path]:
    """Take a tag from the run below ``root`` that has it; the runs that had it."""
    tagged = [directory for directory in kept_directories(root) if name in tags_of(directory)]
    for directory in tagged:
        left = [each for each in tags_of(directory) if each != name]
        write_atomically(directory / TAGS_FILE, "\n".join(left).encode())
    return tagged


def delete(root: Path, which: str) -> Path:
    """Remove a run below ``root``, tagged or not. ``UsageError`` if it is running, ``DataError`` as ``find``."""
    directory = find(which, root)
    if directory.resolve().parent != root.resolve():
        raise DataError(f"{which}: no such run in {root}")
    if is_running(directory):
        raise UsageError(f"{which}: is running; end it first")
    _take_away(directory)
    _mend_latest(root)
    return directory


def prune(root: Path, keep: int) -> list[Path]:
    """Remove all but the ``keep`` newest runs below ``root``, running and tagged runs excepted; return the removed."""
    if keep < 0:
        raise UsageError(f"--keep {keep}: the number of runs to keep cannot be negative")
    removed = [
        directory for directory in kept_directories(root)[keep:] if not is_running(directory) and not tags_of(directory)
    ]
    for directory in removed:
        _take_away(directory)
    if removed:
        _mend_latest(root)
    return removed


def is_running(directory: Path) -> bool:
    """Whether a ``perfscope run`` of any task still holds the run in ``directory``."""
    return any(is_alive(directory, task_of_file(file)) for file in manifests(directory))


def _take_away(directory: Path) -> None:
    try:
        _remove(directory, manifests(directory) or [directory / COMPILED_FILE])
    except OSError as error:
        raise DataError(f"{directory}: cannot be removed: {error.strerror or error}") from error


def discard(directory: Path) -> bool:
    """Remove a run of which nothing is worth keeping, and its folder if it was the only one; whether it is gone."""
    try:
        _remove(directory, manifests(directory))
    except OSError:
        return False
    root = directory.parent
    _mend_latest(root)
    with contextlib.suppress(OSError):
        root.rmdir()
    return True


def _remove(directory: Path, present: Iterable[Path]) -> None:
    """Remove a run. ``present``: its manifests, which go first, so that an interrupted removal leaves no run."""
    for file in present:
        file.unlink()
    shutil.rmtree(directory)


def _mend_latest(root: Path) -> None:
    link = root / LATEST
    if link.is_symlink() and not link.exists():
        link.unlink()
        if remaining := kept_directories(root):
            point_latest(root, remaining[0].name)


def point_latest(root: Path, name: str) -> None:
    """Move the link in one step; a file or folder of that name that is not ours is left alone."""
    link = root / LATEST
    if link.exists() and not link.is_symlink():
        return
    draft = root / f".{LATEST}.{os.getpid()}.{os.urandom(2).hex()}"
    try:
        draft.symlink_to(name)
        draft.replace(link)
    except OSError:  # a file system without links: the listing still finds the newest run
        draft.unlink(missing_ok=True)


def step_ns_of(run: Run) -> int | None:
    """The step time of a run (`step_time`) as far as its manifest has it, in ns; ``None`` if no step was timed."""
    from perfscope.model.documents.step_time import middle, step_time_of

    times = (
        step_time_of(
            window=None if process.window_ns is None else (process.window_ns, process.window_steps),
            unprofiled=process.untraced_step_ns,
            profiled=(),
            rank=process.rank,
        )
        for process in run.processes
    )
    timed = middle(time for time in times if time is not None)
    return None if timed is None else round(timed.ns)


RECENT_STEPS = 100


def recent_of(run: Run) -> tuple[int, int, float | None] | None:
    """Count, median in ns and tokens/s of the last steps (at most ``RECENT_STEPS``) of the first rank with timed steps.

    Tokens/s: ``None`` if the tokens per step are unknown. ``None``: no step was timed.
    """
    from statistics import median

    for process in run.processes:
        steps = process.untraced_step_ns[-RECENT_STEPS:]
        if not steps:
            continue
        tokens = process.untraced_step_tokens[-len(steps) :]
        known = [count * length for count, length in filter(None, tokens)]
        whole = len(known) == len(steps) and sum(steps) > 0
        return len(steps), round(median(steps)), sum(known) * 1e9 / sum(steps) if whole else None
    return None


def run_files(folder: Path) -> list[Path]:
    """The files of a recording, sorted: no links, nothing hidden, no reports. ``DataError`` if there are too many."""
    if folder.is_file():
        return [folder]
    files = []
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(root, name)
            if not name.startswith((".", *_WRITTEN_FROM_THE_REST)) and path.is_file() and not path.is_symlink():
                files.append(path)
                if len(files) > MAX_RUN_FILES:
                    raise DataError(f"{folder}: more than {MAX_RUN_FILES:,} files; a baseline is one run")
    return files
