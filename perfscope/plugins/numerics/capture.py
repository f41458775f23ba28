"""Numerics as a recorder of `perfscope run`: starts after the import of torch or jax; written with the manifest."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from perfscope.model.documents.run import Capture
from perfscope.model.files import write_atomically
from perfscope.plugins.numerics.document import NUMERICS_FILE, Numerics, dump_numerics
from perfscope.profiler.session.passes import Framework

if TYPE_CHECKING:
    from perfscope.model.capture import CaptureOptions
    from perfscope.profiler.session.steps import Source, StepFinder

NAME = "numerics"
WRITING_SHARE = 0.01
"""Largest share of the time used for writing, even if the history has grown."""


def available() -> str | None:
    """Why numerics cannot be recorded in this process, or None."""
    found = any(importlib.util.find_spec(framework) is not None for framework in ("torch", "jax"))
    return None if found else "neither PyTorch nor JAX is installed"


class Recorder(Protocol):
    """Records the numerics of one framework."""

    scaler_updates: int
    """Steps that end with the update of a loss scaler, also those whose optimizer it skips."""

    def start(self) -> None:
        """Hook the framework."""

    def stop(self) -> None:
        """Store pending values, and restore the framework."""

    def silence(self) -> None:
        """Record nothing more; the hooks stay."""

    def document(self, number: Callable[[Any], int], steps_seen: int) -> Numerics:
        """All values so far; ``number``: step of a moment."""


class NumericsCapture:
    """The numerics of a process. With the level ``deep`` ops are watched in all steps."""

    def __init__(self, options: CaptureOptions, finder: Callable[[], StepFinder]) -> None:
        self._deep = options.level == "deep"
        self._due = 0.0
        self._written: Framework = "torch"
        self._finder = finder
        self._recorders: dict[Framework, Recorder] = {}

    def start(self, framework: Framework) -> None:
        """Hook the framework, which is imported."""
        module = importlib.import_module(f"perfscope.plugins.numerics.{framework}.recorder")
        self._recorders[framework] = module.Recorder(self._now, every_step=self._deep)
        self._recorders[framework].start()

    def step_begins(self) -> None:
        """Nothing: a new step shows at the next tensor."""

    def stop(self) -> None:
        """Remove the hooks. Recorded data stays."""
        for recorder in self._recorders.values():
            recorder.stop()

    def abandon_in_fork(self) -> None:
        """In a forked child: recording belongs to the parent."""
        for recorder in self._recorders.values():
            recorder.silence()
        self._recorders.clear()

    def save(self, directory: Path, run: Path, *, last: bool) -> list[Capture]:
        """Write at the end, or before the program may be killed; with two frameworks, the one with more tensors."""
        if not self._recorders:
            return []
        path = directory / NUMERICS_FILE
        tool = f"{self._written}_numerics"
        recorded = Capture(pass_name=NAME, tool=tool, state="recorded", artifact=path.relative_to(run).as_posix())
        if last:
            self.stop()
        elif monotonic() < self._due and path.is_file():
            return [recorded]
        began = monotonic()
        finder = self._finder()
        source = finder.source if finder.source is not None else finder.best()
        documents = {framework: _document(recorder, finder, source) for framework, recorder in self._recorders.items()}
        self._written = max(documents, key=lambda framework: len(documents[framework].tensors))
        write_atomically(path, dump_numerics(documents[self._written]), durable=False)
        self._due = monotonic() + (monotonic() - began) / WRITING_SHARE
        return [replace(recorded, tool=f"{self._written}_numerics")]

    def _now(self) -> Any:
        """Steps of the chosen source; before it is known, of all sources."""
        finder = self._finder()
        return dict(finder.completed) if finder.source is None else finder.completed.get(finder.source, 0)


def _document(recorder: Recorder, finder: StepFinder, source: Source | None) -> Numerics:
    steps = _number((dict(finder.completed), recorder.scaler_updates), source)
    return recorder.document(lambda moment: _number(moment, source), steps)


def _number(moment: tuple[Any, int], source: Source | None) -> int:
    """Complete steps. If the optimizer is the source, steps that a loss scaler makes it skip count, too."""
    counts, updates = moment
    steps = int(counts if not isinstance(counts, Mapping) else 0 if source is None else counts.get(source, 0))
    return max(steps, updates) if source is None or source.name == "OPTIMIZER" else steps
