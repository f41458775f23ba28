"""Requests to record more steps, which ``perfscope trigger`` leaves in the run folder while the program runs."""

from __future__ import annotations

from pathlib import Path
from time import monotonic

TRIGGER_FILE = ".record-again"
"""Holds the requested number of steps. Each request replaces the file."""
MOST_STEPS = 100
"""Largest number of steps per request, so that a trace stays readable."""
LOOK_EVERY_S = 1.0
"""Seconds between two looks at the file: each costs some microseconds, on a network file system milliseconds."""


class Trigger:
    """Looks for requests. ``run``: the run directory. A request from before the process began is not for it."""

    def __init__(self, run: Path) -> None:
        self._path = run / TRIGGER_FILE
        self._looked = monotonic()
        self._seen = self._version()

    def steps(self) -> int:
        """Number of steps of a new request; 0 without a request, or less than a second after the last look."""
        now = monotonic()
        if now - self._looked < LOOK_EVERY_S:
            return 0
        self._looked = now
        version = self._version()
        if version is None or version == self._seen:
            return 0
        self._seen = version
        try:
            return min(MOST_STEPS, max(0, int(self._path.read_bytes()[:8])))
        except (OSError, ValueError):
            return 0

    def _version(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino
