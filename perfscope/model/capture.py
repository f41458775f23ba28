"""Options of a capture, and the message that carries them from ``perfscope run`` into the program's processes."""

from __future__ import annotations

import dataclasses
import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any, Literal, get_args

from perfscope.model.errors import UsageError

Level = Literal["light", "default", "deep"]
LEVELS: tuple[Level, ...] = get_args(Level)

Tool = Literal["nsys"]
TOOLS: tuple[Tool, ...] = get_args(Tool)
"""Profilers that wrap the whole program, in place of those that run inside it."""

VARIABLE = "PERFSCOPE_CAPTURE"
"""The environment variable that carries a ``Message``."""

WAIT_S = 60.0
"""Seconds for which the first task waits for the others after its own end: ranks end within seconds of each other,
and a network file system may show a new file a minute late."""

DEFAULT_WARMUP = 2
"""Steps left alone: the first fills caches and allocator pools, the second the optimizer's state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """What to capture. ``steps``: half-open numbers of the timing pass, counted from 0; ``None``: after the warm-up."""

    level: Level = "default"
    steps: tuple[int, int] | None = None
    warmup: int = DEFAULT_WARMUP
    whole: bool = False
    step_annotation: str | None = None
    quiet: bool = False
    xla_dump: bool = False
    """Have XLA write what it compiles (jax only)."""
    capture: Tool | None = None
    """The profiler around the program; ``None``: the framework's own, inside it."""
    stacks: bool = True
    """Sample the Python stacks of threads and worker processes while steps run."""
    recorders: Mapping[str, str] = field(default_factory=dict)
    """Recorders of plug-ins that run in all steps, in place of a profile: key of the recording -> class."""
    watchers: Mapping[str, str] = field(default_factory=dict)
    """Watchers of plug-ins, which observe the whole process next to a profile: name -> class."""
    seconds: float | None = None
    """Time after which the program is ended, counted from its start; ``None``: it ends by itself."""
    alone: bool = False
    """Never capture in processes that the program starts."""
    times_only: bool = False
    """Only find and time the steps, without recordings, as the launches of an A/B comparison do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """The message from ``perfscope run`` to the processes it starts."""

    directory: str
    """The run directory, absolute."""
    options: CaptureOptions
    pythonpath: str | None
    """The program's own ``PYTHONPATH``, which the bootstrap puts back."""
    follow: bool
    """Whether processes that this process starts capture too."""
    recording: str | None = None
    """Path of the export of ``options.capture``, relative to the run directory."""
    checkout: str | None = None
    """Folder that the program must not import from, because it runs a copy of it (A/B)."""
    tree: str | None = None
    """That copy."""
    worker_of: int | None = None
    """The process that reads this is a worker that ``multiprocessing`` started for the process with this id: its stacks
    are sampled, and nothing else."""
    child: bool = False
    """Whether the program started the process that reads this: it captures if no process before it has steps."""
    companion: str = ""
    """Class of a plug-in that works in the processes, too (`perfscope.profiler.session.recorders.Companion`)."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the companion, as JSON values."""

    def dump(self) -> str:
        """As JSON text."""
        return json.dumps(dataclasses.asdict(self))


def load_message(text: str) -> Message:
    """Parse a message that ``Message.dump`` wrote; ``ValueError``, ``KeyError`` or ``TypeError`` if it is invalid."""
    raw = json.loads(text)
    options = dict(raw["options"])
    if options["steps"] is not None:
        first, end = options["steps"]
        options["steps"] = (int(first), int(end))
    return Message(
        directory=raw["directory"],
        options=CaptureOptions(**options),
        pythonpath=raw["pythonpath"],
        follow=raw["follow"],
        recording=raw.get("recording"),
        checkout=raw.get("checkout"),
        tree=raw.get("tree"),
        worker_of=raw.get("worker_of"),
        child=raw.get("child", False),
        companion=raw.get("companion", ""),
        settings=raw.get("settings", {}),
    )


def parse_steps(text: str, least: int = 1) -> tuple[int, int]:
    """``'20:25'`` -> ``(20, 25)``. ``least``: 1, because a profiler does not see the begin of step 0."""
    first, colon, end = text.partition(":")
    if not colon or not first.isdecimal() or not end.isdecimal():
        raise UsageError(f"--steps {text}: give A:B, two step numbers, such as 20:25")
    steps = (int(first), int(end))
    if steps[0] < least:
        raise UsageError(f"--steps {text}: the first step that can be captured is 1 (the begin of step 0 is not seen)")
    if steps[1] <= steps[0]:
        raise UsageError(f"--steps {text}: captures no step; B is not included and must be above A")
    return steps


# The true time of a step: some steps without a profiler, with the devices waited for before and after them all.
#
# With a framework that dispatches without waiting, the host's step is as short as its dispatch. Two waits give the time
# of the steps, device included, and keep the program's own overlap between them.


WINDOW_SIZES = (4, 16, 64)
"""Steps per window, in order; the longest completed window counts. The number of a program's last step is unknown,
and a wait after the last step would include the work that follows it, so a short window comes first."""

REPEATED_WINDOW_SIZES = (8,) * 1250
"""Equal windows, one after the other, if only times are taken. A wait is a small part of 8 steps, and a
program of 60 steps still gives several; no more steps than are kept one by one (10,000)."""

MOST_RETRIES = 2
"""Windows that are discarded because a program was compiled in them; after that such a window counts."""


class TimedWindows:
    """Measures windows of whole steps. Methods are called at step boundaries, on the thread of the loop."""

    def __init__(
        self, wait: Callable[[], bool], compiled: Callable[[], int], sizes: tuple[int, ...] = WINDOW_SIZES
    ) -> None:
        """Nothing is measured yet; ``sizes``: steps of the windows to come.

        ``wait``: waits for all dispatched work, False if there is no device that works on its own;
        ``compiled``: how many programs were compiled so far.
        """
        self._wait = wait
        self._compiled = compiled
        self._sizes = deque(sizes)
        self._retries = 0
        self._begin_ns: int | None = None
        self._compiled_before = 0
        self._inside = 0
        self.ns: int | None = None
        """Duration of the longest complete window; ``None`` before the first."""
        self.each_ns: list[int] = []
        """Duration of every complete window, in order."""
        self.steps = 0
        """In it."""
        self.compiled = 0
        """Programs that were compiled in it."""

    @property
    def next_size(self) -> int:
        """Steps of the window to come or under way; 0 after the last."""
        return self._sizes[0] if self._sizes else 0

    def before_step(self) -> bool:
        """Begin a step that no profiler sees: open a window if none is open. Return whether it waited for all work."""
        if self._begin_ns is not None or not self._sizes or not self._wait():
            return False
        self._inside = 0
        self._compiled_before = self._compiled()
        self._begin_ns = perf_counter_ns()
        return True

    def after_step(self) -> None:
        """It ended: close the window if it is full."""
        if self._begin_ns is None:
            return
        self._inside += 1
        if self._inside < self._sizes[0]:
            return
        waited = self._wait()
        duration = perf_counter_ns() - self._begin_ns
        self._begin_ns = None
        compiled = self._compiled() - self._compiled_before
        if compiled and self._retries < MOST_RETRIES:
            self._retries += 1
        elif waited:
            self._sizes.popleft()
            self.each_ns.append(duration)
            self.ns, self.steps, self.compiled = duration, self._inside, compiled

    def drop(self) -> None:
        """Discard the open window, because a profiler starts."""
        self._begin_ns = None
