"""The child that reads what was opened, judges it and writes what the pages show. Nothing of it stays in the server.

``python -m perfscope.dashboards.web.server.prepare PATH FOLDER``: the views go to ``FOLDER/<view>.json`` as each is
done, what they hold beside that to ``FOLDER/<view>/``, and how far it is to ``FOLDER/state.json``.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfscope.analyzers.configuration import FILE, Configuration, find_configuration
from perfscope.analyzers.devices import Device, named_device
from perfscope.analyzers.devices.topology import read_topology
from perfscope.analyzers.judge import JudgeTask, judge_paths
from perfscope.analyzers.readers.load import Task, TaskResult, read_task
from perfscope.dashboards.report import json_report
from perfscope.dashboards.web.server.child import Child, run_alone
from perfscope.dashboards.web.views import VIEWS, Gathered, Job, Place, view_module
from perfscope.model.errors import UsageError, log_failure
from perfscope.model.trace import Trace

_log = logging.getLogger(__name__)


class Work(Child):
    """One preparation: gathers of each trace while it is read, then writes the views."""

    def __init__(self, path: str, folder: Path) -> None:
        """``folder`` is there; nothing is written yet."""
        super().__init__(path, folder)
        self._gathered: dict[str, list[Gathered]] = {name: [] for name in VIEWS}
        self._broken: dict[str, str] = {}

    def run(self) -> None:
        """Read, judge as the ``pyproject.toml`` of the working directory asks, write. ``PerfscopeError``: why not."""
        self.tell("working", "reading")
        configuration = find_configuration()
        judged = judge_paths(
            [self.path],
            executor=self._work_in_turn,
            device=_device(configuration),
            topology=None if configuration.topology is None else read_topology(configuration.topology),
            configuration=configuration,
        )
        self.tell("working", "writing")
        report = json_report.document(judged.analysis)
        for name in VIEWS:
            if name in self._broken:
                self.write(name, {"problem": self._broken[name]})
                continue
            try:
                job = Job(
                    analysis=judged.analysis,
                    traces=judged.loaded.traces,
                    report=report,
                    gathered=self._gathered[name],
                    folder=self._own(name),
                )
                self.write(name, {"view": view_module(name).view(job)})
            except Exception as error:  # a page that fails must not cost the user the others
                log_failure(_log, f"view {name} failed", error)
                self.write(name, {"problem": f"this page cannot be shown: {type(error).__name__}: {error}"})
        self.tell("ready", "")

    def _work_in_turn(self, work: JudgeTask, tasks: Sequence[Task]) -> Iterator[tuple[int, TaskResult]]:
        """The executor in this process; between reading and judging the views take what they need."""
        for index, task in enumerate(tasks):
            self.tell("working", f"reading {index + 1} of {len(tasks)}")
            read = read_task(task)
            for trace in read.traces:
                self._gather(trace.trace)
            yield index, work.judged(read)

    def _gather(self, trace: Trace) -> None:
        number = self.traces
        self.traces += 1
        for name in VIEWS:
            gather = getattr(view_module(name), "gather", None)
            if gather is None or name in self._broken:
                continue
            place = Place(folder=self._own(name, str(number)), number=number)
            try:
                value = gather(trace, place)
            except Exception as error:  # as above
                log_failure(_log, f"view {name} failed on {trace.source.path}", error)
                self._broken[name] = f"this page cannot be shown: {type(error).__name__}: {error}"
                continue
            self._gathered[name].append(Gathered(source=trace.source, place=place, held=value))

    def _own(self, name: str, *more: str) -> Path:
        folder = self.folder.joinpath(name, *more)
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _device(configuration: Configuration) -> Device | None:
    if configuration.device is None:
        return None
    device = named_device(configuration.device)
    if device is None:
        raise UsageError(f"{FILE}: device = {configuration.device!r}: not in the hardware tables")
    return device


def main(arguments: Sequence[str]) -> int:
    """Prepare ``PATH`` into ``FOLDER``; 0 if it is done, or another child is at it."""
    return run_alone(Work(arguments[0], Path(arguments[1])))


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    sys.exit(main(sys.argv[1:]))
