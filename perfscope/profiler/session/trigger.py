"""Requests to record more steps, which ``perfscope trigger`` leaves in the run folder while the program runs.

Ranks of a job record the same steps without a message: the first rank that finds a request chooses the first step, as
far ahead as the others need to find it too, and leaves the number in a file, which only one rank can make.
"""

from __future__ import annotations

import os
from contextlib import suppress
from math import ceil
from pathlib import Path
from time import monotonic

TRIGGER_FILE = ".record-again"
"""Holds the requested number of steps. Each request replaces the file."""
MOST_STEPS = 100
"""Largest number of steps per request, so that a trace stays readable."""
LOOK_EVERY_S = 1.0
"""Seconds between two looks at the file: each costs some microseconds, on a network file system milliseconds."""
AHEAD = 2.0
"""Looks that each rank has before the steps begin: one may fall right before the request, or be late by a step."""


class Trigger:
    """Looks for requests. ``run``: the run directory. A request from before the process began is not for it."""

    def __init__(self, run: Path) -> None:
        self._path = run / TRIGGER_FILE
        self._looked = monotonic()
        self._number = 0
        """Step of the last look."""
        self._seen = self._version()
        self._due: tuple[int, int] | None = None
        """(First step, number of steps) of a request that was found."""

    def steps(self, number: int, *, alone: bool) -> int:
        """Number of steps to record from step ``number`` on, which begins now; 0 without a request.

        Looks for a request at most once per second. ``alone``: no other rank records the same steps.
        """
        wanted, ahead = self._look(number)
        if wanted:
            self._due = (number if alone else self._agreed(number + ahead), wanted)
        if self._due is None or number < self._due[0]:
            return 0
        (_, wanted), self._due = self._due, None
        return wanted

    def _look(self, number: int) -> tuple[int, int]:
        """(Steps of a new request, steps until all ranks have looked); zeros without a request."""
        now = monotonic()
        since = now - self._looked
        if since < LOOK_EVERY_S:
            return 0, 0
        steps_per_s = max(0, number - self._number) / since
        self._looked, self._number = now, number
        version = self._version()
        if version is None or version == self._seen:
            return 0, 0
        self._seen = version
        try:
            wanted = min(MOST_STEPS, max(0, int(self._path.read_bytes()[:8])))
        except (OSError, ValueError):
            return 0, 0
        return wanted, 1 + ceil(AHEAD * LOOK_EVERY_S * steps_per_s)

    def _agreed(self, first: int) -> int:
        """The first step of all ranks: ``first`` if this rank is the one that chooses."""
        assert self._seen is not None
        chosen = self._path.with_name(f"{TRIGGER_FILE}-{self._seen[0]}")
        draft = chosen.with_name(f"{chosen.name}-{os.getpid()}")
        try:
            draft.write_bytes(str(first).encode())
            with suppress(FileExistsError):
                os.link(draft, chosen)  # whole at once, unlike a file that is opened and then written
            draft.unlink()
            return int(chosen.read_bytes())
        except (OSError, ValueError):  # a file system without links: each rank begins by itself
            return first

    def _version(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino
