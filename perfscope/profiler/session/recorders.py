"""Recorders of plug-ins: what runs in all steps of the user's program in place of a profile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from perfscope.model.capture import CaptureOptions
from perfscope.model.documents.run import Capture
from perfscope.model.plugins import load
from perfscope.profiler.session.passes import Framework

if TYPE_CHECKING:
    from perfscope.profiler.session.steps import StepFinder


class Recorder(Protocol):
    """Records in the user's process; made with the options of the run and a function that returns the step finder."""

    def start(self, framework: Framework) -> None:
        """Hook the framework, which is imported."""

    def stop(self) -> None:
        """Remove the hooks and keep the records."""

    def abandon_in_fork(self) -> None:
        """Record nothing more in this forked child."""

    def save(self, directory: Path, run: Path, *, last: bool) -> list[Capture]:
        """Write the records to the folder of the process; entries for the manifest, relative to ``run``."""


def load_recorders(options: CaptureOptions, finder: Callable[[], StepFinder]) -> list[Recorder]:
    """The recorders that the options name."""
    return [load(home)(options, finder) for home in options.recorders.values()]
