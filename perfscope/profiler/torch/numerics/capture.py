"""Numerics as a capture of `perfscope run`: begins with the import of torch, and is written with the manifest."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from perfscope.model.documents.numerics import NUMERICS_FILE, dump_numerics
from perfscope.model.documents.run import Capture
from perfscope.model.files import write_atomically

if TYPE_CHECKING:
    from perfscope.profiler.session.steps import Source, StepFinder
    from perfscope.profiler.torch.numerics.recorder import Recorder

PASS, TOOL = "numerics", "torch_numerics"
WRITING_SHARE = 0.01
"""Of the time at most, also where the history has grown."""
NO_JAX = "numerics are recorded of PyTorch programs; those of JAX are not evaluated"


def available() -> str | None:
    """Why numerics cannot be recorded in this process, or None."""
    return None if importlib.util.find_spec("torch") is not None else "PyTorch is not installed"


class NumericsCapture:
    """The numerics of a process, where they are ``wanted``."""

    def __init__(self, finder: Callable[[], StepFinder], *, wanted: bool, deep: bool) -> None:
        """Nothing is hooked yet. ``deep``: ops are watched in all steps."""
        self._deep = deep
        self.wanted = wanted
        self._due = 0.0
        self._finder = finder
        self._recorder: Recorder | None = None

    def start(self) -> None:
        """Hook torch, which is imported."""
        if self.wanted:
            from perfscope.profiler.torch.numerics.recorder import Recorder

            self._recorder = Recorder(self._now, every_step=self._deep)
            self._recorder.start()

    def stop(self) -> None:
        """Take the hooks out. What was recorded stays."""
        if self._recorder is not None:
            self._recorder.stop()

    def abandon_in_fork(self) -> None:
        """In a forked child: everything is the parent's."""
        if self._recorder is not None:
            self._recorder.silence()
            self._recorder = None

    def save(self, directory: Path, run: Path, *, last: bool) -> list[Capture]:
        """Write it at the end, or where the program may be killed."""
        if not self.wanted:
            return []
        if self._recorder is None:
            return [Capture(pass_name=PASS, tool=TOOL, state="missing", reason=NO_JAX)]
        path = directory / NUMERICS_FILE
        recorded = Capture(pass_name=PASS, tool=TOOL, state="recorded", artifact=path.relative_to(run).as_posix())
        if last:
            self._recorder.stop()
        elif monotonic() < self._due and path.is_file():
            return [recorded]
        began = monotonic()
        finder = self._finder()
        source = finder.source if finder.source is not None else finder.best()
        steps = _number((dict(finder.completed), self._recorder.scaler_updates), source)
        numerics = self._recorder.document(lambda moment: _number(moment, source), steps)
        write_atomically(path, dump_numerics(numerics), durable=False)
        self._due = monotonic() + (monotonic() - began) / WRITING_SHARE
        return [recorded]

    def _now(self) -> Any:
        """Steps of the source that tells them; before it is known, of all sources."""
        finder = self._finder()
        return dict(finder.completed) if finder.source is None else finder.completed.get(finder.source, 0)


def _number(moment: tuple[Any, int], source: Source | None) -> int:
    """Complete steps. Where the optimizer tells them those that a loss scaler has it skip count, too."""
    counts, updates = moment
    steps = int(counts if not isinstance(counts, Mapping) else 0 if source is None else counts.get(source, 0))
    return max(steps, updates) if source is None or source.name == "OPTIMIZER" else steps
