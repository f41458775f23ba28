"""Child processes of the server: each prepares one work, writes its data, and reports a failure in one line.

``python -m perfscope.dashboards.web.server.child KIND ARGUMENT... FOLDER``, with a kind of `KINDS` or of
a plug-in. The data of a page
goes to ``FOLDER/<view>.json``, the progress of the child to ``FOLDER/state.json``. The server keeps no trace data.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from perfscope.dashboards.web.server.shelf import LOCK_FILE, STATE_FILE
from perfscope.model.errors import DataError, PerfscopeError, UsageError, log_failure
from perfscope.model.files import write_atomically
from perfscope.model.plugins import load, named

if TYPE_CHECKING:
    from perfscope.analyzers.devices import Device
    from perfscope.analyzers.judge import JudgeTask
    from perfscope.analyzers.readers import Task, TaskResult
    from perfscope.dashboards.web.views import Gathered
    from perfscope.model.trace import Trace

MOST_LINE = 1_000
"""Most characters of a line of a command."""

_log = logging.getLogger(__name__)


class Child:
    """One preparation. ``folder`` exists and is empty; ``path`` is named in messages."""

    def __init__(self, path: str, folder: Path) -> None:
        """Start the clock."""
        self.path = path
        self.folder = folder
        self.traces = 0
        """Number of traces read so far."""
        self._began = time.time()

    def report(self, state: str, stage: str) -> None:
        """Report the progress to the server."""
        progress = {
            "state": state,
            "stage": stage,
            "began_unix_s": self._began,
            "traces": self.traces,
            "pid": os.getpid(),
        }
        write_atomically(self.folder / STATE_FILE, json.dumps(progress).encode(), durable=False)

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        """Write the data of a page."""
        write_atomically(self.folder / f"{name}.json", msgspec.json.encode(data), durable=False)


def _item(child: Child, arguments: Sequence[str]) -> None:
    """``PATH``: read and judge it with the ``pyproject.toml`` of the working directory, and write all views."""
    from perfscope.analyzers.configuration import find_configuration
    from perfscope.analyzers.devices import read_topology
    from perfscope.analyzers.judge import judge_paths
    from perfscope.dashboards.report import json_report
    from perfscope.dashboards.web.views import VIEWS, Job, view_module
    from perfscope.dashboards.web.views.empty import EMPTY_VIEW, empty_pages
    from perfscope.dashboards.web.views.listed import LISTED_VIEW, listed_row

    child.report("working", "reading")
    configuration = find_configuration()
    gathering = _Gathering(child)
    judged = judge_paths(
        [child.path],
        executor=gathering.in_turn,
        device=None if configuration.device is None else _device(configuration.device),
        topology=None if configuration.topology is None else read_topology(configuration.topology),
        configuration=configuration,
    )
    child.report("working", "writing")
    report = json_report.document(judged.analysis)
    made: dict[str, Any] = {}
    for name in VIEWS:
        if name in gathering.problems:
            child.write(name, {"problem": gathering.problems[name]})
            continue
        try:
            job = Job(
                analysis=judged.analysis,
                traces=judged.loaded.traces,
                report=report,
                gathered=gathering.gathered[name],
                folder=gathering.folder(name),
            )
            made[name] = view_module(name).view(job)
            child.write(name, {"view": made[name]})
        except Exception as error:  # if one page fails, the user must still get the others
            child.write(name, {"problem": _problem(f"view {name} failed", error)})
    child.write(EMPTY_VIEW, {"view": empty_pages(made)})
    child.write(LISTED_VIEW, {"view": listed_row(judged.analysis, report)})


class _Gathering:
    """Collects the input of the views from each trace after reading it, with one rank in memory at a time."""

    def __init__(self, child: Child) -> None:
        from perfscope.dashboards.web.views import VIEWS

        self._child = child
        self.gathered: dict[str, list[Gathered]] = {name: [] for name in VIEWS}
        self.problems: dict[str, str] = {}

    def in_turn(self, work: JudgeTask, tasks: Sequence[Task]) -> Iterator[tuple[int, TaskResult]]:
        """Executor of `judge_paths` that runs in this process."""
        from perfscope.analyzers.readers import read_task

        for index, task in enumerate(tasks):
            self._child.report("working", f"reading {index + 1} of {len(tasks)}")
            read = read_task(task)
            for trace in read.traces:
                self._take(trace.trace)
            yield index, work.judged(read)

    def folder(self, *names: str) -> Path:
        """Create a folder for data too large for the page's JSON."""
        folder = self._child.folder.joinpath(*names)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _take(self, trace: Trace) -> None:
        from perfscope.dashboards.web.views import Gathered, Place, view_module

        number = self._child.traces
        self._child.traces += 1
        for name, taken in self.gathered.items():
            gather = getattr(view_module(name), "gather", None)
            if gather is None or name in self.problems:
                continue
            place = Place(folder=self.folder(name, str(number)), number=number)
            try:
                taken.append(Gathered(source=trace.source, place=place, held=gather(trace, place)))
            except Exception as error:  # as above
                self.problems[name] = _problem(f"view {name} failed on {trace.source.path}", error)


def _problem(what: str, error: Exception) -> str:
    log_failure(_log, what, error)
    return f"this page cannot be shown: {type(error).__name__}: {error}"


def _device(name: str) -> Device:
    from perfscope.analyzers.configuration import FILE
    from perfscope.analyzers.devices import named_device

    device = named_device(name)
    if device is None:
        raise UsageError(f"{FILE}: device = {name!r}: not in the hardware tables")
    return device


def _pair(child: Child, arguments: Sequence[str]) -> None:
    """``BASE HEAD``: compare them as ``perfscope compare`` does; ``DOCUMENT``: show a stored comparison."""
    from perfscope.analyzers.compare import compare_loaded
    from perfscope.analyzers.readers import load_path
    from perfscope.dashboards.report.compare import json as as_json
    from perfscope.dashboards.web.views.compare import view_of
    from perfscope.model.documents import comparison

    if len(arguments) == 1:
        document = comparison.read(arguments[0])
    else:
        loaded = []
        for name, path in zip(("base", "head"), arguments, strict=True):
            child.report("working", f"reading {name}")
            loaded.append(load_path(path))
            child.traces += len(loaded[-1].traces)
        child.report("working", "comparing")
        document = comparison.of(as_json.document(compare_loaded(*loaded)))
    child.report("working", "writing")
    child.write("compare", {"view": view_of(document)})


def _export(child: Child, arguments: Sequence[str]) -> None:
    """``PATH FORM``: run the export command and pack its output. ``DataError``: the command's error line."""
    from perfscope.dashboards.web.server.exports import ABOUT, FORMS, MADE, made_file

    path, name = arguments
    form = FORMS[name]
    child.report("working", "reading and writing")
    final = made_file(child.folder, name)
    target = child.folder / MADE if form.folder else final
    # A report reads one rank at a time into memory, as everywhere in the server.
    verb = ("analyze", path, "--jobs", "1") if form.report else ("export", path, "--to", name)
    done = subprocess.run(
        (sys.executable, "-m", "perfscope", *verb, "-o", str(target)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    lines = done.stderr.decode("utf-8", "replace").splitlines()
    texts = [line.removeprefix("perfscope: ")[:MOST_LINE] for line in lines]
    if done.returncode < 0:
        raise DataError(f"{path}: the export was killed by signal {-done.returncode} (out of memory?)")
    if done.returncode:
        raise DataError(texts[-1] if texts else f"{path}: the export failed with exit code {done.returncode}")
    if form.folder:
        child.report("working", "packing")
        pack(target, final)
    # The location is the server's own: drop the line on it and the line on how to open it.
    child.write(
        ABOUT, {"remarks": [text for text in texts if not text.startswith("wrote ") and f"/{MADE}" not in text]}
    )


def pack(folder: Path, target: Path) -> None:
    """Write a ZIP of a folder's files, complete or not at all; compressed files are stored unchanged."""
    scratch = target.with_name(f".{target.name}.part")
    with zipfile.ZipFile(scratch, "w") as packed:
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            how: Any = zipfile.ZIP_STORED if file.suffix == ".parquet" else zipfile.ZIP_DEFLATED
            packed.write(file, file.relative_to(folder), compress_type=how, compresslevel=1)
    scratch.replace(target)


KINDS: dict[str, Callable[[Child, Sequence[str]], None]] = {
    "item": _item,
    "pair": _pair,
    "export": _export,
}


def main(words: Sequence[str]) -> int:
    """Prepare a work into the folder, the last argument, holding its lock; 0 also if another child does so already."""
    kind, *arguments, into = words
    sides = arguments[:1] if kind == "export" else arguments
    child = Child(" and ".join(sides), Path(into))
    with (child.folder / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return 0
        try:
            prepare = KINDS.get(kind) or load(named("works")[kind]).prepare
            prepare(child, arguments)
        except PerfscopeError as error:
            child.report("failed", str(error))
            return error.exit_code
        except MemoryError:
            child.report("failed", f"{child.path}: does not fit into this machine's memory")
            return 1
        child.report("ready", "")
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    sys.exit(main(sys.argv[1:]))
