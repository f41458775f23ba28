"""Fingerprints as a recorder of `perfscope run`: starts after the import of torch or jax; written with the manifest."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfscope.model.documents.run import Capture
from perfscope.plugins.fingerprint.document import FINGERPRINT_FILE, UNCOUNTED, Log, is_sampled
from perfscope.profiler.session.passes import Framework
from perfscope.profiler.torch.module_calls import TRAINING_CALLS

if TYPE_CHECKING:
    from perfscope.model.capture import CaptureOptions
    from perfscope.profiler.session.steps import StepFinder

NAME = "fingerprint"


def available() -> str | None:
    """Why fingerprints cannot be recorded in this process, or None."""
    found = any(importlib.util.find_spec(framework) is not None for framework in ("torch", "jax"))
    return None if found else "neither PyTorch nor JAX is installed"


class FingerprintCapture:
    """The fingerprints of a process: of the framework whose import it sees first, or of JAX if that jits functions."""

    def __init__(self, options: CaptureOptions, finder: Callable[[], StepFinder]) -> None:
        self._steps = options.steps
        self._finder = finder
        self._recorders: dict[Framework, Any] = {}
        self._logs: dict[Framework, Log] = {}

    def start(self, framework: Framework) -> None:
        """Hook the framework, which is imported."""
        module = importlib.import_module(f"perfscope.plugins.fingerprint.{framework}.recorder")
        log = self._logs[framework] = Log(framework)
        log.settings = module.settings()
        recorder = self._recorders[framework] = module.Recorder(self._now, self._sampled, log)
        recorder.start()

    def step_begins(self) -> None:
        """Start or stop to record ops, as the step is sampled or not."""
        for recorder in self._recorders.values():
            recorder.step_begins()

    def stop(self) -> None:
        """Remove the hooks. Recorded data stays."""
        for recorder in self._recorders.values():
            recorder.stop()

    def abandon_in_fork(self) -> None:
        """In a forked child: recording belongs to the parent."""
        for recorder in self._recorders.values():
            recorder.silence()
        self._recorders.clear()
        self._logs.clear()

    def save(self, directory: Path, run: Path, *, last: bool) -> list[Capture]:
        """Append what was recorded since the last call, one file per framework."""
        if last:
            self.stop()
        captures = []
        for framework, log in self._logs.items():
            name = FINGERPRINT_FILE if framework == "torch" else f"{framework}-{FINGERPRINT_FILE}"
            if log.is_empty and len(self._logs) > 1:
                continue
            path = directory / name
            log.settings = importlib.import_module(f"perfscope.plugins.fingerprint.{framework}.recorder").settings()
            log.write(path, self._number, self._source())
            artifact = path.relative_to(run).as_posix()
            captures.append(
                Capture(pass_name=NAME, tool=f"{framework}_fingerprint", state="recorded", artifact=artifact)
            )
        return captures

    def _now(self) -> Any:
        """Steps of all sources: which of them the steps of the program are may show later."""
        return dict(self._finder().completed)

    def _source(self) -> Any:
        finder = self._finder()
        return finder.source if finder.source is not None else finder.best()

    def _sampled(self, moment: Any, trains: bool) -> bool:
        number = self._number(moment)
        return is_sampled(number, self._steps) or (self._steps is None and self._may_be_first(number, trains))

    def _may_be_first(self, number: int, trains: bool) -> bool:
        """Whether it may be a part of the first step: no source is known, or an optimizer is awaited (``trains``)."""
        source = self._finder().source
        if source is None:
            return True
        return trains and source.name == "MODULE" and number < TRAINING_CALLS

    def _number(self, moment: Mapping[Any, int]) -> int:
        return int(moment.get(self._source(), moment.get(UNCOUNTED, 0)))
