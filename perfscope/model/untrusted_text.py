"""Untrusted text made fit to be shown: no control characters, no secrets, no endless names.

Kernel names, paths and annotations come from a trace, and a trace comes from anyone. Every face
passes them through here before it escapes them for its own format.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

NAME_LIMIT = 160
"""Characters of a name in a table: a mangled CUTLASS name stays recognisable, a screen stays one."""

TEXT_LIMIT = 4_000
"""Characters of any other text: advice with code fits, a megabyte pasted into a name does not."""

MASK = "[hidden]"

_MAX_INPUT = 20_000
"""Characters that are looked at before shortening, so that a huge name costs nothing."""

_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?|\x1b[ -/]*[0-~]"
)

_HOMES = re.compile(
    r"(?:(?<![\w.-])(?:/home/|/Users/)|\b[A-Za-z]:\\Users\\)(?!Shared\b)[^/\\\s\"':]+(?=[/\\\s\"':]|$)"
    r"|(?<![\w/.-])/root(?=/|$)"
)
_MOUNTED_HOMES = re.compile(r"(?<=[\w.-])(/(?:home|users)/)[^/\s\"':]+(?=/)", re.IGNORECASE)
"""``/mnt/home/alice/``: the mount is kept, the user is removed."""

_TOKENS = re.compile(
    r"\bgh[pousr]_[A-Za-z0-9]{20,}"
    r"|\bgithub_pat_\w{20,}"
    r"|\bglpat-[\w-]{16,}"
    r"|\bhf_[A-Za-z0-9]{20,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bsk-[A-Za-z0-9_-]{20,}"
    r"|\bxox[abeprs]-[\w-]{10,}"
    r"|\bAIza[\w-]{35}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
)
"""Tokens that their own prefix gives away: GitHub, GitLab, Hugging Face, AWS, OpenAI, Slack, Google, JWT."""

_WORD = (
    r"(?:[\w-]*(?:passw(?:or)?d|passphrase|secret|token|credentials?|auth|authorization"
    r"|(?:api|access|account|auth|encryption|private|secret|signing|ssh|wandb)[_-]?key))"
)
_NAMED = re.compile(
    rf"(?i)(?<![\w-])(-{{0,2}}{_WORD}[\"']?\s*[=:]\s*[\"']?(?>(?:bearer\s+|basic\s+)?))(?!\[hidden\])([^\s\"'&,;)\]}}]{{6,}})"
)
"""``API_KEY=...``, ``"password": "..."``, ``Authorization: Bearer ...``: the value of a telling name."""
_QUERY = re.compile(rf"(?i)([?&;](?:{_WORD}|[\w-]*signature|sig|key)=)(?!\[hidden\])([^\s\"'&#,;)\]}}]+)")
"""``?X-Amz-Signature=...``, ``&sig=...``: what signs an address."""
_OPTION = re.compile(rf"(?i)(?<![\w-])(--{_WORD}\s+)([^\s-]\S*)")
"""``--hf-token VALUE`` of a command line."""
_SECRET_NAME = re.compile(rf"(?i)^{_WORD}$")
_LONG_VALUE = re.compile(r"(\b(?=\w*?key)\w++[\"']?\s*+[=:]\s*+[\"']?)([A-Za-z0-9+/_=-]{32,})", re.IGNORECASE)
"""A long hexadecimal or base64 value of anything called a key."""
_LOGIN = re.compile(r"(://)[^/\s@]+@")
"""User, and password, in a URL."""
_ASSIGNMENT = re.compile(r"(?P<name>-{0,2}[A-Za-z_][\w.-]*)=.*", re.DOTALL)


def sanitize(text: str, limit: int = NAME_LIMIT) -> str:
    """``text`` on one line, without control characters and secrets, cut in the middle to ``limit``."""
    return shorten(" ".join(clean(text).split()), limit)


def clean(text: str) -> str:
    """``text`` without terminal sequences, control and direction characters and secrets; lines are kept."""
    return _cleaned(text, os.environ.get("HOME", ""))


@lru_cache(maxsize=4096)
def _cleaned(text: str, home: str) -> str:
    """Kept, because a report shows the same keys and names thousands of times."""
    if len(text) > _MAX_INPUT:
        text = f"{text[: _MAX_INPUT - 2_000]} … {text[-2_000:]}"
    text = _ANSI.sub("", text)
    if not text.isprintable():
        text = _NOT_PLAIN.sub(lambda match: _harmless(match[0]), text)
    return _scrubbed(text, home)


_NOT_PLAIN = re.compile(r"[^\n\t -~]")


def _harmless(character: str) -> str:
    category = unicodedata.category(character)
    if category in ("Zl", "Zp"):  # a name from a file must not begin a line of the report
        return " "
    if category in ("Cc", "Cf"):
        return ""
    return "\N{REPLACEMENT CHARACTER}" if category in ("Cs", "Co", "Cn") else character


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters: the middle gives way to an ellipsis, so both ends stay readable."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def scrub(text: str) -> str:
    """``text`` with home directories as ``~`` and secret-looking parts masked."""
    return _scrubbed(text, os.environ.get("HOME", ""))


@lru_cache(maxsize=4096)
def _scrubbed(text: str, home: str) -> str:
    """Kept, as in ``_cleaned``."""
    if len(home) > 1 and home in text:
        text = re.sub(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])", "~", text)
    text = _MOUNTED_HOMES.sub(r"\1…", _HOMES.sub("~", text))
    text = _LOGIN.sub(rf"\1{MASK}@", text)
    text = _TOKENS.sub(MASK, text)
    for pattern in (_NAMED, _QUERY, _OPTION, _LONG_VALUE):
        text = pattern.sub(rf"\1{MASK}", text)
    return text


def scrub_command(words: Sequence[str]) -> tuple[str, ...]:
    """``scrub`` of each word of a command, and the values of telling options and variables masked, however short.

    ``--hf-token x``, ``--hf-token=x`` and ``WANDB_API_KEY=x`` all lose their ``x``.
    """
    shown: list[str] = []
    hide = False
    for word in words:
        if hide and not word.startswith("-"):
            shown.append(MASK)
            hide = False
            continue
        assigned = _ASSIGNMENT.fullmatch(word)
        if assigned is not None and _SECRET_NAME.match(assigned["name"].lstrip("-")):
            shown.append(f"{assigned['name']}={MASK}")
            hide = False
            continue
        shown.append(scrub(word))
        hide = word.startswith("-") and _SECRET_NAME.match(word.lstrip("-")) is not None
    return tuple(shown)


def sanitize_value(value: Any, limit: int = TEXT_LIMIT) -> Any:
    """A JSON-like value with every text in it cleaned and shortened; tuples become lists."""
    return _sanitized(value, limit, os.environ.get("HOME", ""))


def _sanitized(value: Any, limit: int, home: str) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, str):
        return shorten(_cleaned(value, home), limit)
    if isinstance(value, Mapping):
        return {
            shorten(_cleaned(str(key), home), limit): _under_key(str(key), value, limit, home)
            for key, value in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_sanitized(value, limit, home) for value in value]
    return value


def _under_key(key: str, value: Any, limit: int, home: str) -> Any:
    """The value under a key, masked as a whole if the key is the name of a secret."""
    if isinstance(value, str) and value and _SECRET_NAME.match(key):
        return MASK
    return _sanitized(value, limit, home)
