"""Causes of the account of the step, and their names in reports."""

from __future__ import annotations

from typing import Literal, cast, get_args

from perfscope.model.untrusted_text import sanitize

HostPurpose = Literal[
    "compilation",
    "memory",
    "collective_setup",
    "garbage_collection",
    "saving",
    "other_ranks",
    "sleeping",
]
"""Purposes of host time that the step's account, the host's account and the critical path have in common."""

Cause = Literal[
    "compute",
    "exposed_communication",
    "exposed_copy",
    "sync",
    "input",
    "launch",
    HostPurpose,
    "other_host",
    "core_wait",
    "dependency",
    "unexplained",
]
CAUSES: tuple[Cause, ...] = get_args(Cause)
"""In the order of a report: device work first, then the reasons for idle time."""

BUSY: tuple[Cause, ...] = ("compute", "exposed_communication", "exposed_copy")
"""Causes in which a device works."""

LEAST_SHARE = 0.0005
"""Smallest share of the step that reports show: less rounds to 0.0 %. Documents have all causes."""

NAME_LIMIT = 40
"""Characters of a cause that is unknown here: a document of a newer version may hold one."""

_WORDS: dict[Cause, str] = {
    "compute": "compute",
    "exposed_communication": "exposed communication",
    "exposed_copy": "exposed copies",
    "sync": "idle: waited for the device",
    "input": "idle: waited for input",
    "launch": "idle: launching",
    "compilation": "idle: compiling or loading code",
    "memory": "idle: device memory calls",
    "collective_setup": "idle: setting up collectives",
    "garbage_collection": "idle: garbage collection",
    "saving": "idle: saving and logging",
    "other_ranks": "idle: host waited for other ranks",
    "sleeping": "idle: host slept or waited for a lock",
    "other_host": "idle: other host work",
    "core_wait": "idle: host waited for a core",
    "dependency": "idle: waited for other device work",
    "unexplained": "idle: unexplained",
}
_ON_HOST: dict[Cause, str] = {"compute": "ops on the host", "launch": "between ops"}


def cause_words(cause: Cause | str, *, on_host: bool) -> str:
    """Name of a cause; an unknown cause by its identifier. ``on_host``: in an account without a device."""
    words = cast("dict[str, str]", _WORDS).get(cause) or sanitize(cause, NAME_LIMIT)
    return cast("dict[str, str]", _ON_HOST).get(cause, words.removeprefix("idle: ")) if on_host else words
