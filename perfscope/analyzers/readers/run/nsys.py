"""The recordings of Nsight Systems in a run directory: one holds every process that a task of the run started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from perfscope.analyzers.readers.nsys import reader as nsys_reader
from perfscope.analyzers.readers.run.parts import NSYS, shared_recording
from perfscope.model.documents.run import Process
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace


class Recordings:
    """The traces of a run's recordings, each given to the process it is of."""

    def __init__(self, path: Path, processes: Sequence[Process]) -> None:
        """Read what ``processes`` of the run at ``path`` point at; what is corrupt is in ``problems``."""
        self.problems: dict[str, str] = {}
        """By the file's path in the run."""
        self.notes: dict[str, str] = {}
        """What the reader must know of a process's trace, by the process's directory."""
        self.further: list[Trace] = []
        """Of processes that left no manifest: other programs than Python's."""
        self._of: dict[str, Trace] = {}
        groups: dict[str, list[Process]] = {}
        for process in processes:
            artifact = shared_recording(process)
            if artifact is not None:
                groups.setdefault(artifact, []).append(process)
        for artifact, sharing in groups.items():
            try:
                if not (path / artifact).is_file():
                    raise DataError(f"{path / artifact}: no such file")
                self._share(sharing, nsys_reader.read(path / artifact))
            except DataError as error:
                self.problems[artifact] = str(error)

    def of(self, process: Process) -> Trace | None:
        """The trace of a process; ``None`` if its work is in another's."""
        return self._of.get(process.directory)

    def _share(self, processes: list[Process], traces: list[Trace]) -> None:
        ranks = {trace.source.rank: trace for trace in traces}
        if len(ranks) == len(traces) and set(ranks) == {process.rank for process in processes}:
            pairs = [(process, ranks[process.rank]) for process in processes]
        else:  # both are in order: by rank, and by process id
            pairs = list(zip(processes, traces, strict=False))
        self._of |= {process.directory: _complete(trace, process) for process, trace in pairs}
        self.further += traces[len(pairs) :]
        if len(traces) == 1 and len(processes) > 1:
            text = (
                f"{len(processes)} processes in one timeline: what no device tells apart is one trace, and its steps "
                "are of the thread with most"
            )
            self.notes[processes[0].directory] = text


def _complete(trace: Trace, process: Process) -> Trace:
    """The trace without the step that the program's end cut off: the tool ends its range with the process.

    What a process wrote of its steps is up to some seconds old if it was killed: those after are complete but the
    last.
    """
    told = [capture.steps for capture in process.captures if capture.tool == NSYS]
    steps = trace.rows["steps"]
    if process.step_source is None or not told or not len(steps):
        return trace
    last = int(steps["number"].max())
    if told[0] is None or last >= told[0][1]:
        return replace(trace, rows={**trace.rows, "steps": steps.take(steps["number"] != last)})
    return trace
