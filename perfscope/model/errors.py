"""Errors a person can act on. Each carries the exit code; only ``main()`` prints and exits."""

from __future__ import annotations

import logging
from collections.abc import Iterable

DONE = 0
GATE_NOT_MET = 1
USAGE_ERROR = 2
INCONCLUSIVE = 3
DATA_UNREADABLE = 4
NOT_STARTED = 125

MOST_SUGGESTED = 3
"""Names that an error offers in place of an unknown one."""


class PerfscopeError(Exception):
    """One line a person can act on, the path first; ``exit_code`` is what the process returns."""

    exit_code = DATA_UNREADABLE

    def __init__(self, line: str) -> None:
        """``line``: breaks in it, as names in a file may have, become spaces."""
        super().__init__(" ".join(line.splitlines()))


class UsageError(PerfscopeError):
    """The command line, or an argument of a public function, makes no sense."""

    exit_code = USAGE_ERROR


class DataError(PerfscopeError):
    """A file is missing, truncated, corrupt, of the wrong format, empty or too large."""

    exit_code = DATA_UNREADABLE


class NotStartedError(PerfscopeError):
    """The user's program could not be started at all."""

    exit_code = NOT_STARTED


def log_failure(log: logging.Logger, what: str, error: BaseException) -> None:
    """Log an internal error that stops nothing in one line; with its traceback if ``log`` shows debugging."""
    from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

    line = sanitize(f"{what}: {type(error).__name__}: {error}", TEXT_LIMIT)
    log.warning("perfscope: %s", line, exc_info=error if log.isEnabledFor(logging.DEBUG) else None)


def see(question: str) -> str:
    """The end of a message: the command that answers its question, `` (`perfscope explain "..."`)``.

    ``question``: words for which `perfscope explain` has an answer (tests check each).
    """
    return f' (`perfscope explain "{question}"`)'


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``'; did you mean host_sync?'``, the end of an error about ``name``: known names that are similar or contain it.

    Case, dashes and underscores make no difference. ``''`` if no name is close.
    """
    from difflib import get_close_matches

    spelled_name = _plain(name)
    spelled = {_plain(word): word for word in known}
    containing = [word for plain, word in spelled.items() if len(spelled_name) > 2 and spelled_name in plain]
    alike = [spelled[plain] for plain in get_close_matches(spelled_name, spelled, n=MOST_SUGGESTED, cutoff=0.6)]
    close = list(dict.fromkeys([*alike, *containing]))[:MOST_SUGGESTED]
    return f"; did you mean {' or '.join(close)}?" if close else ""


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")
