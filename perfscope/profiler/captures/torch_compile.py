"""Captures what torch.compile does: its structured trace, what inductor would not fuse, and in which steps it compiled.

Begins with the first compilation of the process; a program that compiles nothing gets no file and pays a handler
in a logger that nobody calls.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from time import time_ns
from typing import Any

from perfscope.profiler import torch_compat
from perfscope.profiler.captures import compile_trace
from perfscope.profiler.captures.compile_fusion import FusionLog
from perfscope.profiler.captures.compile_settings import Settings
from perfscope.profiler.captures.compile_trace import TraceFile
from perfscope.profiler.options import CaptureOptions
from perfscope.profiler.run import Capture
from perfscope.profiler.steps import Source
from perfscope.profiler.store import write_atomically

PASS = "compile"  # noqa: S105 (the name of a pass)
TOOL = "torch_compile"
FOLDER = "compile"
STEPS_FILE = "steps.json"
SCHEMA = "perfscope.compile_steps/1"
MOST_SPANS = 10_000
"""Steps that compiled something; a program that compiles in each of so many steps is known by then."""
MOST_MARKS = 64
"""Step boundaries whose time by the clock of the log is kept; those of the profiled steps are a handful."""


def available() -> str | None:
    """Why the compiler's log cannot be had, or ``None`` if it can."""
    if "torch" not in sys.modules:
        return "PyTorch is not imported"
    found = torch_compat.trace_formatter()
    return found if isinstance(found, str) else None


class TorchCompileCapture:
    """Listens from ``start()`` to ``stop()``, on all threads.

    ``place()``: the directory of this process, asked for with the first compilation; ``announce()``: called when a
    file is there. ``counts()``: complete steps by source; which source is right is known later.
    """

    def __init__(
        self,
        options: CaptureOptions,
        *,
        place: Callable[[], Path],
        announce: Callable[[], None],
        counts: Callable[[], Mapping[Source, int]],
    ) -> None:
        """Nothing is hooked yet."""
        self._directory = place
        self._announce = announce
        self._counts = counts
        self._whole = options.whole
        self._settings = Settings(options.level)
        self._fusion = FusionLog()
        self._trace: TraceFile | None = None
        self._reason: str | None = None
        self._undo: torch_compat.Undo | None = None
        self._ready = False
        self._lock = threading.Lock()
        self._spans: list[tuple[dict[Source, int], list[int]]] = []
        self._marks: list[tuple[int, int]] = []
        self._written: tuple[int | None, ...] = ()
        self._packed = False
        self.compilations = 0
        """Frames that dynamo began to compile, each time anew."""

    def start(self) -> None:
        """torch is imported: wait for the first compilation. Inductor's own helper processes are left alone."""
        if torch_compat.in_compile_worker():
            return
        formatter = torch_compat.trace_formatter()
        if isinstance(formatter, str):
            self._reason = formatter
            return
        self._trace = TraceFile(formatter, self._place, seen=self._seen, announce=self._announce)
        self._undo = torch_compat.add_trace_handler(self._trace)

    @property
    def looks(self) -> bool:
        """Whether every compilation of the program is seen."""
        return self._trace is not None

    def stop(self) -> None:
        """Leave torch as it was."""
        if self._undo is not None:
            self._undo()
            self._undo = None
        self._fusion.stop()
        self._settings.take_back()
        if self._trace is not None:
            self._trace.close()

    def abandon_in_fork(self) -> None:
        """In a forked child: the files are the parent's."""
        self.stop()

    def step_begins(self, number: int) -> None:
        """A profiled step is about to begin: its range in the trace starts a moment after this time."""
        if len(self._marks) < MOST_MARKS:
            self._marks.append((number, time_ns()))

    def save(self, directory: Path, run: Path, source: Source | None, *, last: bool = False) -> list[Capture]:
        """Write what is not on disk yet, and say what is there. ``source``: whose steps are the program's."""
        trace = self._trace
        if trace is None or not trace.opened:
            if self._reason is not None and torch_compat.has_compiled():
                return [Capture(pass_name=PASS, tool=TOOL, state="missing", reason=self._reason)]
            return []
        folder = directory / FOLDER
        if not (self._packed or (folder / compile_trace.FILE).exists()):
            return [Capture(pass_name=PASS, tool=TOOL, state="missing", reason=trace.problem or "no file was made")]
        self._save_steps(folder / STEPS_FILE, source)
        if last and not self._packed:
            self.stop()
            self._packed = compile_trace.pack(folder) == compile_trace.PACKED
        name = compile_trace.PACKED if self._packed else compile_trace.FILE
        return [
            Capture(
                pass_name=PASS,
                tool=TOOL,
                state="recorded",
                reason=self._remark(trace),
                artifact=(folder / name).relative_to(run).as_posix(),
            )
        ]

    def _step(self, counts: Mapping[Source, int], source: Source | None) -> int | None:
        """The step that ran, or was about to: so many were complete."""
        if self._whole:
            return 0
        return None if source is None else counts.get(source, 0)

    def _remark(self, trace: TraceFile) -> str | None:
        said = []
        if trace.problem is not None:
            said.append(f"the log ends early: {trace.problem}")
        if trace.dropped:
            said.append(f"{trace.dropped} records beyond {compile_trace.MOST_BYTES >> 20} MiB were dropped")
        if self._fusion.problem is not None:
            said.append(f"fusion decisions: {self._fusion.problem}")
        if self._settings.absent:
            said.append(f"this torch's inductor has no setting for {', '.join(self._settings.absent)}")
        return "; ".join(said) or None

    def _place(self) -> Path:
        folder = self._directory() / FOLDER
        folder.mkdir(exist_ok=True)
        self._fusion.place = folder
        return folder

    def moved(self, directory: Path) -> None:
        """The process got another directory, and its files went there."""
        if self._fusion.place is not None:
            self._fusion.place = directory / FOLDER

    def _seen(self, facts: Mapping[str, Any]) -> None:
        """A record of a compilation comes, on any thread."""
        if not self._ready and torch_compat.inductor_loaded():
            self._ready = True
            self._settings.put()
            self._fusion.start()
        self.compilations += "dynamo_start" in facts
        now = time_ns()
        counts = dict(self._counts())
        with self._lock:
            if self._spans and (self._spans[-1][0] == counts or len(self._spans) == MOST_SPANS):
                span = self._spans[-1][1]
                span[1] = now
                span[2] += 1
            else:
                self._spans.append((counts, [now, now, 1]))

    def _save_steps(self, path: Path, source: Source | None) -> None:
        with self._lock:
            spans = [(self._step(counts, source), *span) for counts, span in self._spans]
        state = (len(spans), spans[-1][3] if spans else 0, len(self._marks), source)
        if state == self._written:
            return
        self._written = state
        keys = ("step", "start_ns", "end_ns", "records")
        said: dict[str, Any] = {
            "schema": SCHEMA,
            "settings": list(self._settings.changed),
            "scheduled_graphs": self._fusion.graphs,
            "fusion_problem": self._fusion.problem,
            "fusion_left_out": self._fusion.left_out,
            "spans": [dict(zip(keys, span, strict=True)) for span in spans],
            "marks": [{"step": number, "time_ns": at} for number, at in self._marks],
        }
        write_atomically(path, json.dumps(said).encode(), durable=False)
