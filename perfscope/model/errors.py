"""Errors a person can act on. Each carries the exit code; only ``main()`` prints and exits."""

from __future__ import annotations

DONE = 0
GATE_NOT_MET = 1
USAGE_ERROR = 2
INCONCLUSIVE = 3
DATA_UNREADABLE = 4
NOT_STARTED = 125


class PerfscopeError(Exception):
    """One line a person can act on, the path first; ``exit_code`` is what the process returns."""

    exit_code = DATA_UNREADABLE


class UsageError(PerfscopeError):
    """The command line, or an argument of a public function, makes no sense."""

    exit_code = USAGE_ERROR


class DataError(PerfscopeError):
    """A file is missing, truncated, corrupt, of the wrong format, empty or too large."""

    exit_code = DATA_UNREADABLE


class NotStartedError(PerfscopeError):
    """The user's program could not be started at all."""

    exit_code = NOT_STARTED
