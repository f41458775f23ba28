"""When a program is not followed further: nothing new comes, too much comes, or it takes too long."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from perfscope.profiler.aot.jax_seen_lines import is_users

SWALLOWED = 3
"""Times that the program may catch what ends it, before every further line of its raises it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far a program is followed."""

    calls: int = 3
    """Of every program of a loop after the last new one, before it is taken to repeat itself."""
    quiet: int = 100
    """Calls of programs in a row without a new one, before it is taken to repeat itself: a program that comes every
    hundredth step is seen, one that comes every thousandth is not."""
    programs: int = 32
    """A function that is traced anew in every step would never end."""
    operations: int = 200_000
    """Outside of jit, in a row without a call of a program."""
    seconds: float = 300.0
    """Of its own time."""
    until_exit: bool = False
    """Follow it to its end, whatever repeats; the limits of programs and seconds hold all the same."""


class Stop(BaseException):
    """Ends the user's program from inside a call of jax's; the text says why."""


class Watch:
    """Counts calls and says stop."""

    def __init__(self, limits: Limits) -> None:
        """Nothing is counted, and no clock runs, before `running`."""
        self.limits = limits
        self.stopped: str | None = None
        """Why it is not followed further; ``None`` while it is."""
        self._began = time.monotonic()
        self._programs = 0
        self._since: dict[Any, int] = {}
        self._quiet = self._operations = self._raised = 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The program runs inside: the clock also ends it where it calls nothing of jax's."""
        self._began = time.monotonic()
        thread, over = threading.get_ident(), threading.Event()

        def ring() -> None:
            # a call of jax's sees it first, and says it; only what calls none for a while is ended from here
            if not over.wait(self.limits.seconds + 1.0):
                self.stopped = self.stopped or self._late()
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Stop))

        clock = threading.Thread(target=ring, daemon=True)
        clock.start()
        try:
            yield
        finally:
            over.set()
            sys.settrace(None) if self._raised > SWALLOWED else None
            clock.join()

    def called(self, key: Any, *, new: bool) -> None:
        """A program is called."""
        self._again()
        limits = self.limits
        self._operations = 0
        if new:
            self._programs += 1
            self._since, self._quiet = {}, 0
            if self._programs >= limits.programs:
                self._stop(
                    f"{limits.programs} different programs: the limit (a function that is traced anew in every step "
                    "makes a new one each time)"
                )
        else:
            self._since[key] = self._since.get(key, 0) + 1
            self._quiet += 1
            if not limits.until_exit and self._quiet >= limits.quiet and self._repeats():
                self._stop(
                    f"nothing new in {self._quiet} calls of compiled functions, each of them called at least "
                    f"{min(self._since.values())} times"
                )
        self._clock()

    def operated(self) -> None:
        """An operation is called outside of jit."""
        self._again()
        self._operations += 1
        if not self.limits.until_exit and self._operations > self.limits.operations:
            self._stop(f"more than {self.limits.operations:,} operations outside of jit in a row")
        self._clock()

    def _repeats(self) -> bool:
        return min(self._since.values()) >= self.limits.calls or self._quiet >= 3 * self.limits.quiet

    def _clock(self) -> None:
        if time.monotonic() - self._began > self.limits.seconds:
            self._stop(self._late())

    def _late(self) -> str:
        return f"it ran for more than {self.limits.seconds:g} s"

    def _stop(self, why: str) -> None:
        self.stopped = self.stopped or why
        self._again()

    def _again(self) -> None:
        """Raise where it is over; a program that catches it meets it at the next call, then at its next line."""
        if self.stopped is None:
            return
        self._raised += 1
        if self._raised > SWALLOWED:
            _raise_at_every_line(self.stopped)
        raise Stop(self.stopped)


def _raise_at_every_line(why: str) -> None:
    """Raise it at the next line of the user's own code, also where that is catching it."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            raise Stop(why)
        return trace

    def pass_by(frame: FrameType, event: str, argument: Any) -> None:
        """New functions are left alone."""

    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            frame.f_trace = trace
        frame = frame.f_back
    sys.settrace(pass_by)
