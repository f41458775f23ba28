"""Division of a run directory into parts that are read one by one, and combination of the results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import Struct

from perfscope.model.documents import run_folders
from perfscope.model.documents.run import Process, Run
from perfscope.model.errors import see
from perfscope.model.trace import Trace

FORMAT = "run"

NSYS = "nsys"
"""Tool whose one recording holds every process that a task of the run started."""


class RunPart(Struct, frozen=True, kw_only=True):
    """Processes of a run that are read together: one, or all that share a recording of Nsight Systems."""

    path: str
    """The run directory."""
    run: Run
    """Run without its processes, because those of 4096 ranks would travel with each part."""
    processes: tuple[Process, ...]
    """Processes of the part, not empty."""
    several: bool
    """Whether the run has more than one process."""

    def name(self) -> str:
        """``rank00003``, or the recording that the processes share."""
        first, *others = self.processes
        shared = shared_recording(first)
        return shared if others and shared is not None else first.directory

    def artifacts(self) -> tuple[str, ...]:
        """Paths of the recorded files, relative to the run directory, each once."""
        result = (
            capture.artifact
            for process in self.processes
            for capture in process.captures
            if capture.artifact is not None
        )
        return tuple(dict.fromkeys(result))


class DividedRun(Struct, frozen=True, kw_only=True):
    """A run and its parts, by their first process."""

    path: str
    run: Run
    parts: tuple[RunPart, ...]


def divide_run(path: Path) -> DividedRun:
    """Return the parts of the run at ``path``; ``DataError`` if its manifest is corrupt."""
    run = run_folders.read(path)
    bare = replace(run, processes=())
    return DividedRun(
        path=str(path),
        run=run,
        parts=tuple(
            RunPart(path=str(path), run=bare, processes=tuple(processes), several=len(run.processes) > 1)
            for processes in _by_shared_recording(run.processes)
        ),
    )


def shared_recording(process: Process) -> str | None:
    """Return the recording of Nsight Systems that a process shares with others, by its path in the run."""
    return next((capture.artifact for capture in process.captures if capture.tool == NSYS and capture.artifact), None)


def _by_shared_recording(processes: Sequence[Process]) -> Iterable[list[Process]]:
    """Group processes that share a recording; each of the others alone."""
    groups: dict[str, list[Process]] = {}
    for process in processes:
        shared = shared_recording(process)
        groups.setdefault(f"recording {shared}" if shared else f"process {process.directory}", []).append(process)
    return groups.values()


def trace_order(trace: Trace) -> tuple[bool, int]:
    """Return the sort key of the traces of all parts: processes by rank, then other programs."""
    return trace.source.format != FORMAT, trace.source.rank or 0


def why_nothing_captured(run: Run) -> str:
    """Return why a run without corrupt files has no trace."""
    if run.state == "running":
        return "nothing was captured yet: the run is in progress, and none of its passes has ended"
    reasons = [capture.reason for process in run.processes for capture in process.captures if capture.reason]
    why = (reasons or list(run.notes) or ["the program ended before a step was complete"])[0]
    begin = "nothing was captured"
    return why if why.startswith(begin) else f"{begin}: {why}{see(begin)}"
