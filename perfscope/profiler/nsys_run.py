"""One program under Nsight Systems, from the question whether that can be to the notes of what came of it."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

from perfscope.profiler import nsys_report
from perfscope.profiler.captures import nsys
from perfscope.profiler.errors import NotStartedError
from perfscope.profiler.launch import Ended, Target
from perfscope.profiler.options import CaptureOptions


class NsysRun:
    """The ``nsys`` around the program of one task. ``NotStartedError`` if it cannot do what ``options`` ask."""

    def __init__(self, options: CaptureOptions) -> None:
        """Ask the installed version what it can do."""
        found = nsys.probe()
        problem = found if isinstance(found, str) else nsys.refused(found, options)
        if problem is not None or isinstance(found, str):
            raise NotStartedError(f"--capture nsys: {problem}")
        self._installed = found
        self._options = options
        self._directory = Path()
        self._folder = Path()
        self._task = 0

    def place(self, directory: Path, task: int) -> str:
        """Make the folder for what it writes; the export that will lie there, relative to the run directory."""
        self._directory, self._task = directory.resolve(), task
        self._folder = nsys_report.folder_of(self._directory, task)
        self._folder.mkdir(mode=0o700)
        return (self._folder / nsys_report.EXPORT).relative_to(self._directory).as_posix()

    def around(self, target: Target) -> Target:
        """The command that runs ``target`` under ``nsys``."""
        line = nsys.arguments(self._installed, self._options, self._folder / nsys_report.REPORT)
        command = nsys.around(line, target.command_line(), self._folder / nsys_report.LOG)
        return Target(arguments=tuple(command), command=True)

    def told(self, ended: Ended) -> Ended:
        """How the program ended, as far as ``nsys`` says it.

        It returns the program's code, but 0 for many a program that Ctrl-C ended: it stops to wait for it.
        """
        if ended.interrupted and ended.code == 0:
            return replace(ended, code=128 + signal.SIGINT)
        return ended

    def collect(self) -> tuple[str, ...]:
        """The program ended: export what was recorded. Notes for the run's manifest."""
        return tuple(
            nsys_report.collect(
                self._directory,
                self._folder,
                self._installed.path,
                steps_chosen=self._options.steps is not None,
                task=self._task,
            )
        )
