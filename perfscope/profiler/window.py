"""The true time of a step: some steps without a profiler, with the devices waited for before and behind them all.

A framework that dispatches and goes on makes the host's step as short as its dispatch. Two waits give what
the steps took, device included, and leave the program's own overlap between them as it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter_ns

SIZES = (4, 16, 64)
"""Steps of the windows, one after the other; the longest that was completed counts. Nobody says which step is a
program's last, and a wait behind it would count what the program does then: so a short window comes first."""

REPEATED_SIZES = (8,) * 1250
"""Where nothing but times is taken: equal windows, one after the other. Of 8 steps a wait is a small part, and a
program of 60 steps still gives several; no more steps than are kept one by one (10,000)."""

MOST_RETRIES = 2
"""Windows that are given up because a program was compiled in them; one that compiles in each step is measured so."""


class TimedWindows:
    """Measures windows of whole steps. Methods are called at step boundaries, on the thread of the loop."""

    def __init__(self, wait: Callable[[], bool], compiled: Callable[[], int], sizes: tuple[int, ...] = SIZES) -> None:
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
        """Of the longest complete window; ``None`` before the first."""
        self.each_ns: list[int] = []
        """Of every complete window, in order."""
        self.steps = 0
        """In it."""
        self.compiled = 0
        """Programs that were compiled in it."""

    @property
    def next_size(self) -> int:
        """Steps of the window to come or under way; 0 behind the last."""
        return self._sizes[0] if self._sizes else 0

    def before_step(self) -> None:
        """A step begins that no profiler sees: open a window if none is open."""
        if self._begin_ns is None and self._sizes and self._wait():
            self._inside = 0
            self._compiled_before = self._compiled()
            self._begin_ns = perf_counter_ns()

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
        """A profiler starts: what is open does not count."""
        self._begin_ns = None
