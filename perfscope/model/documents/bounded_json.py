"""JSON documents of ours, read as untrusted input: bounded, of one schema, and what is wrong is one line."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

from perfscope.model.errors import DataError

Document = TypeVar("Document")

MOST_SAID = 300
"""Characters of what a reader of JSON complains of."""


def read_document(file: Path, kind: type[Document], schema: str, *, what: str, most_bytes: int) -> Document:
    """The document in a file. ``what``: what it should be, ``a manifest``.

    ``DataError`` in one line where it is missing, larger than ``most_bytes``, no JSON, or of another schema.
    """
    try:
        if file.stat().st_size > most_bytes:
            raise DataError(f"{file}: larger than {most_bytes >> 20} MiB, not {what}")
        raw = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise DataError(f"{file}: {(error.strerror or 'cannot be read').lower()}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{file}: not valid JSON ({str(error)[:MOST_SAID]})") from error
    result = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or result != schema:
        raise DataError(f"{file}: its schema is {str(result)[:60]!r}; this perfscope reads {schema!r}")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{file}: {str(error)[:MOST_SAID]}") from error
