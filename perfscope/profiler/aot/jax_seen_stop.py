"""When a program is not followed further: nothing new comes, too much comes, or it takes too long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far a program is followed."""

    calls: int = 3
    """Of every program of a loop after the last new one, before it is taken to repeat itself."""
    quiet: int = 100
    """Calls of programs in a row without a new one, before it is taken to repeat itself."""
    programs: int = 32
    """A function that is traced anew in every step would never end."""
    operations: int = 200_000
    """Calls outside of jit in a row without a new program."""
    seconds: float = 300.0
    """Of its own time."""
    until_exit: bool = False
    """Follow it to its end, whatever repeats; the limits of programs and seconds hold all the same."""


class Stop(BaseException):
    """Ends the user's program from inside a call of jax's; the text says why."""


class Watch:
    """Counts calls and says stop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.stopped: str | None = None
        self._began = time.monotonic()
        self._programs = 0
        self._since: dict[Any, int] = {}
        self._quiet = 0
        self._operations = 0

    def called(self, key: Any, *, new: bool) -> None:
        """A program is called."""
        limits = self.limits
        self._operations = 0
        if new:
            self._programs += 1
            self._since, self._quiet = {}, 0
            if self._programs > limits.programs:
                self._stop(
                    f"more than {limits.programs} programs: the limit (a function that is traced anew in every step "
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
        self._operations += 1
        if not self.limits.until_exit and self._operations > self.limits.operations:
            self._stop(f"more than {self.limits.operations:,} operations outside of jit in a row")
        self._clock()

    def _repeats(self) -> bool:
        return min(self._since.values()) >= self.limits.calls or self._quiet >= 3 * self.limits.quiet

    def _clock(self) -> None:
        if self.stopped is not None:
            raise Stop(self.stopped)
        if time.monotonic() - self._began > self.limits.seconds:
            self._stop(f"it ran for more than {self.limits.seconds:g} s")

    def _stop(self, why: str) -> None:
        self.stopped = self.stopped or why
        raise Stop(self.stopped)
