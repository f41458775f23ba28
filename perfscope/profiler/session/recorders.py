"""Work of plug-ins in the user's program.

Recorders of all steps in place of a profile, companions of a launch, and watchers of the whole process.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from perfscope.model.capture import CaptureOptions, Message
from perfscope.model.documents.run import Capture
from perfscope.model.plugins import load
from perfscope.profiler.session.passes import Framework

if TYPE_CHECKING:
    from perfscope.profiler.session.steps import StepFinder


class Recorder(Protocol):
    """Records in the user's process; made with the options of the run and a function that returns the step finder."""

    def start(self, framework: Framework) -> None:
        """Hook the framework, which is imported."""

    def step_begins(self) -> None:
        """A step begins, whose number the step finder has; not called before the source of steps is known."""

    def stop(self) -> None:
        """Remove the hooks and keep the records."""

    def abandon_in_fork(self) -> None:
        """Record nothing more in this forked child."""

    def save(self, directory: Path, run: Path, *, last: bool) -> list[Capture]:
        """Write the records to the folder of the process; entries for the manifest, relative to ``run``."""


class Companion(Protocol):
    """Changes or records the program in a launch that only times its steps; made with the message of the launch."""

    def attach(self, framework: Framework) -> None:
        """Work on the framework right after its import, before further code of the program."""

    def step(self, number: int) -> None:
        """Step ``number`` is about to begin."""

    def save(self) -> None:
        """Write a report to the folder of the launch."""


class Progress(NamedTuple):
    """How far the program is; read from another thread while it goes on."""

    steps: int
    """Completed steps of the best source so far."""
    inside: bool
    """Whether a step runs whose begin and end are seen."""
    thread: int | None
    """Identifier of the thread of the steps; ``None`` before the first."""


class Watcher(Protocol):
    """Observes the process from the import of the framework to its end, next to a profile.

    Made with the message of the launch and a function that returns the progress.
    """

    def start(self) -> None:
        """Begin to observe."""

    def step_ended(self, begin_ns: int, end_ns: int, *, free: bool) -> None:
        """A step ended, times of ``perf_counter_ns``. ``free``: no profiler recorded it."""

    def stop(self) -> None:
        """Keep what was observed; the process ends."""

    def abandon_in_fork(self) -> None:
        """Observe nothing more in this forked child."""


def load_watchers(message: Message, progress: Callable[[], Progress]) -> list[Watcher]:
    """The watchers that the options name."""
    return [load(home)(message, progress) for home in message.options.watchers.values()]


def load_companion(message: Message) -> Companion | None:
    """The companion that the message names."""
    return load(message.companion)(message) if message.companion else None


def load_recorders(options: CaptureOptions, finder: Callable[[], StepFinder]) -> list[Recorder]:
    """The recorders that the options name."""
    return [load(home)(options, finder) for home in options.recorders.values()]
