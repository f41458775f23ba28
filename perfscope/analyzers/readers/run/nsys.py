"""Recordings of Nsight Systems in a run directory: one holds every process that a task of the run started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from perfscope.analyzers.readers.nsys import reader as nsys_reader
from perfscope.analyzers.readers.run.parts import NSYS, shared_recording
from perfscope.model.documents.run import Process
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace


class Recordings:
    """The traces of a run's recordings, assigned to their processes."""

    def __init__(self, path: Path, processes: Sequence[Process]) -> None:
        """Read the recordings of ``processes`` of the run at ``path``; corrupt ones are in ``problems``."""
        self.problems: dict[str, str] = {}
        """Problem, by the file's path in the run."""
        self.notes: dict[str, str] = {}
        """Note for the reader of a process's trace, by the process's directory."""
        self.further: list[Trace] = []
        """Traces of processes without a manifest: programs other than Python."""
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
        """Return the trace of a process; ``None`` if its work is in another process's trace."""
        return self._of.get(process.directory)

    def _share(self, processes: list[Process], traces: list[Trace]) -> None:
        ranks = {trace.source.rank: trace for trace in traces}
        if len(ranks) == len(traces) and set(ranks) == {process.rank for process in processes}:
            pairs = [(process, ranks[process.rank]) for process in processes]
        else:  # Both are in order: by rank, and by process id.
            pairs = list(zip(processes, traces, strict=False))
        self._of |= {process.directory: _complete(trace, process) for process, trace in pairs}
        self.further += traces[len(pairs) :]
        if len(traces) == 1 and len(processes) > 1:
            text = (
                f"{len(processes)} processes in one timeline: without devices that separate them they are one trace, "
                "and its steps are of the thread with most"
            )
            self.notes[processes[0].directory] = text


def _complete(trace: Trace, process: Process) -> Trace:
    """Return the trace without the step that the end of the program truncated, because the tool ends its range.

    The steps in a process's manifest are up to some seconds old if it was killed; later steps except the last are
    complete.
    """
    recorded = [capture.steps for capture in process.captures if capture.tool == NSYS]
    steps = trace.rows["steps"]
    if process.step_source is None or not recorded or not len(steps):
        return trace
    last = int(steps["number"].max())
    if recorded[0] is None or last >= recorded[0][1]:
        return replace(trace, rows={**trace.rows, "steps": steps.take(steps["number"] != last)})
    return trace
