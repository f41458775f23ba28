"""Bounded sections of a report besides findings; a failure in one does not affect the others."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from perfscope.model.errors import log_failure

_log = logging.getLogger(__name__)


@contextmanager
def guarded(problem: str, source: str, problems: list[str]) -> Iterator[None]:
    """Catch any error inside, so that findings are not lost: it is added to ``problems``, and the rest continues.

    ``problem``: what the section then lacks; ``source``: file concerned.
    """
    try:
        yield
    except Exception as error:  # as for a rule
        log_failure(_log, f"{source}: {problem}", error)
        problems.append(f"{problem}: {type(error).__name__}: {error}")
