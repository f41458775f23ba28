"""One name for a kernel, op or instruction on pages and in the timeline: a common limit of its text, and an id."""

from __future__ import annotations

from hashlib import blake2b

NAME_CHARS = 400
"""Characters of a name, in tables and on the timeline."""

_ID_BYTES = 6
"""Bytes of an id: among a million names the chance of a collision is 0.2%."""


def name_id(text: str) -> str:
    """12 hex digits of a recorded name, the same in every view, rank and run; links use it."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_ID_BYTES).hexdigest()
