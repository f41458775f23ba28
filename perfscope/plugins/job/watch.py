"""Watches the rows of a ledger while the program runs, and has steps recorded in full when their level changes.

A series changed if its last four rows all lie above, or all below, the 12 to 24 rows before them, by more than a least
change: if nothing had changed, that order would come about once in 1,820 to 20,475 times. The first recording is made
after 12 rows; later ones are compared with it. Requests use the file of ``perfscope trigger``, so that all ranks record
the same steps. Only the standard library is imported: this runs in the user's process.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, NamedTuple

from perfscope.model.capture import Message
from perfscope.model.files import write_atomically
from perfscope.profiler.session.passes import TIMING_STEPS
from perfscope.profiler.session.trigger import TRIGGER_FILE

REQUEST = "recording-{:03d}.json"
"""In the folder of the ledgers: a request, which only one rank can make."""
LATEST = 4
"""Rows that must all lie on one side of the rows before them."""
LEAST_BEFORE, MOST_BEFORE = 12, 24
QUIET_S = 300.0
"""Least time between two requests: a change comes to all ranks within seconds, and often in several series."""
MOST_PER_DAY, MOST_REQUESTS = 8, 64
"""Requests of a run in 24 hours, and in all: one takes 0.1 to 20 MB per rank."""
DAY_S = 86_400.0


class Values(NamedTuple):
    """Values of one row; ``None``: not known."""

    step_ns: float | None
    """Median step time."""
    tokens_per_s: float | None
    """While steps run."""
    memory: float | None
    """Bytes that are resident, and that the GPU's allocator has given out."""
    loss: float | None


class Change(NamedTuple):
    """A series changed its level."""

    series: str
    before: float
    """Median of the rows before; units as in `Values`."""
    after: float
    since_ns: int
    """End of the row before the change, ``perf_counter_ns``."""
    step: int
    """Completed steps when it was found."""
    request: int
    """Number of the recording that was requested for it; -1: none."""


class _Series(NamedTuple):
    least: float
    """Smallest relative change that is reported."""
    least_absolute: float
    downwards: bool
    """Whether a fall is a change."""


SERIES: dict[str, _Series] = {
    "step_ns": _Series(least=0.1, least_absolute=0.0, downwards=True),
    "tokens_per_s": _Series(least=0.1, least_absolute=0.0, downwards=True),
    "memory": _Series(least=0.1, least_absolute=256 << 20, downwards=False),
    "loss": _Series(least=0.1, least_absolute=0.0, downwards=False),
}
"""Step times of neighbouring rows on a shared machine differ by some per cent. A fall of memory or loss is expected."""


class _Level:
    """The rows of one series since its last change."""

    def __init__(self, series: _Series) -> None:
        self._series = series
        self._rows: deque[tuple[float, int]] = deque(maxlen=MOST_BEFORE + LATEST)
        self._lost = False
        """Whether the last value was not a number."""

    @property
    def known(self) -> bool:
        """Whether there are enough rows for a level."""
        return len(self._rows) >= LEAST_BEFORE

    def add(self, value: float, end_ns: int) -> tuple[float, float, int] | None:
        """(Before, after, since) if the level changed with this row."""
        if not math.isfinite(value):
            lost, self._lost = self._lost, True
            return None if lost else (self._rows[-1][0] if self._rows else value, value, end_ns)
        self._lost = False
        self._rows.append((value, end_ns))
        rows = list(self._rows)
        before, after = rows[:-LATEST], rows[-LATEST:]
        if len(before) < LEAST_BEFORE:
            return None
        old, new = [row[0] for row in before], [row[0] for row in after]
        if not (min(new) > max(old) or (self._series.downwards and max(new) < min(old))):
            return None
        was, now = median(old), median(new)
        if abs(now - was) < max(self._series.least * abs(was), self._series.least_absolute):
            return None
        self._rows = deque(after, maxlen=MOST_BEFORE + LATEST)
        return was, now, before[-1][1]


class Requests:
    """Requests of the ranks of a run to record steps, within the budget."""

    def __init__(self, run: Path, folder: Path, steps: int = TIMING_STEPS) -> None:
        """``folder``: of the ledgers. ``steps``: per recording."""
        self._run, self._folder, self._steps = run, folder, steps

    def made(self) -> list[float]:
        """Times since 1970 of the requests so far, in s."""
        times = []
        for file in self._folder.glob(REQUEST.replace("{:03d}", "*")):
            with suppress(OSError):
                times.append(file.stat().st_mtime)
        return sorted(times)

    def make(self, why: str, step: int) -> int:
        """Have all ranks record steps; the number of the request, -1 if the budget or the file system refuses it."""
        made, now = self.made(), time.time()
        today = [at for at in made if at > now - DAY_S]
        if len(made) >= MOST_REQUESTS or len(today) >= MOST_PER_DAY or (len(made) > 1 and now - made[-1] < QUIET_S):
            return -1
        number = len(made)
        try:
            with (self._folder / REQUEST.format(number)).open("x") as stream:
                json.dump({"why": why, "step": step, "unix_ns": time.time_ns(), "steps": self._steps}, stream)
            self.trigger()
        except OSError:  # another rank was first, or the disk is full
            return -1
        return number

    def trigger(self) -> None:
        """Leave the request as ``perfscope trigger`` does."""
        write_atomically(self._run / TRIGGER_FILE, str(self._steps).encode(), durable=False)


class Watch:
    """The series of one process, and its requests."""

    def __init__(self, requests: Requests) -> None:
        """Nothing is watched yet."""
        self._requests = requests
        self._levels = {name: _Level(series) for name, series in SERIES.items()}
        self._steady = False
        """Whether the recording that later ones are compared with was requested."""

    def row(self, values: Values, *, steps: int, now_ns: int) -> list[Change]:
        """Changes that a row shows; ``steps``: completed so far; ``now_ns``: end of the row, ``perf_counter_ns``."""
        changes = []
        for name, level in self._levels.items():
            value = getattr(values, name)
            found = None if value is None or value == 0 else level.add(value, now_ns)
            if found is not None:
                changes.append(Change(name, *found, step=steps, request=-1))
        if changes:
            number = self._requests.make(changes[0].series, steps)
            changes = [change._replace(request=number) for change in changes]
        elif not self._steady and self._levels["step_ns"].known:
            self._steady = True
            if not self._requests.made():
                self._requests.make("steady", steps)
        return changes


def listen(requests: Requests) -> None:
    """Have SIGUSR2 record steps where the program has no handler for it; call it on the main thread."""

    def handle(number: int, frame: FrameType | None) -> None:
        with suppress(OSError):
            requests.trigger()

    with suppress(ValueError, AttributeError, OSError):  # another thread; a system without the signal
        if signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL:
            signal.signal(signal.SIGUSR2, handle)


def watching(message: Message, progress: Callable[[], Any]) -> Any:
    """The ledger of a process whose rows are watched; for ``perfscope run --ledger --watch``."""
    from perfscope.plugins.job.recorder import FOLDER, LedgerWatcher

    run = Path(message.directory)
    requests = Requests(run, run / FOLDER)
    listen(requests)
    return LedgerWatcher(message, progress, Watch(requests))
