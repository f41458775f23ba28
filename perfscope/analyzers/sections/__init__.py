"""What a report shows besides findings, one bounded section each; what breaks in one breaks nothing else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from perfscope.model.errors import log_failure

_log = logging.getLogger(__name__)


@contextmanager
def guarded(problem: str, source: str, problems: list[str]) -> Iterator[None]:
    """Whatever breaks inside must not cost the findings: it is added to ``problems``, and the rest goes on.

    ``problem``: what is not in the section then; ``source``: of which file.
    """
    try:
        yield
    except Exception as error:  # as with a rule
        log_failure(_log, f"{source}: {problem}", error)
        problems.append(f"{problem}: {type(error).__name__}: {error}")
