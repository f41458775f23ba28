"""How pages and the timeline name the same kernel, op or instruction: one limit of its text, and one id."""

from __future__ import annotations

from hashlib import blake2b

NAME_CHARS = 400
"""Characters of a name, in tables and on the timeline."""

_ID_BYTES = 6
"""Of a million names two share an id with a chance of 0.2%."""


def name_id(text: str) -> str:
    """12 hex digits for a name as recorded, the same in every view, rank and run: what links name it by."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_ID_BYTES).hexdigest()
