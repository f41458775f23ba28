"""JSON documents of ours, read as untrusted input: bounded, of one schema, and what is wrong is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from perfscope.model.errors import DataError

Document = TypeVar("Document")

MOST_SAID = 300
"""Characters of what a reader of JSON complains of."""

MANY = 100_000
"""Entries of a list of which a job may have many: findings, places, ranks."""
SOME = 10_000
"""Entries of the other lists."""

_LARGEST = 1e30
"""Of a number: beyond the FLOPs of any step, and short enough to be printed."""

Number = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
Ns = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Texts = Annotated[tuple[str, ...], msgspec.Meta(max_length=SOME)]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a document. Keys that are not known are left aside: within a version they are only added."""


def read_document(
    file: Path,
    kind: type[Document],
    schema: str,
    *,
    what: str,
    most_bytes: int,
    renamed: Callable[[dict[str, Any]], dict[str, Any]] = lambda raw: raw,
) -> Document:
    """The document in a file. ``what``: what it should be, ``a manifest``; ``renamed`` as of `decode_document`.

    ``DataError`` in one line where it is missing, larger than ``most_bytes``, no JSON, or of another schema.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(most_bytes + 1)
    except OSError as error:
        raise DataError(f"{file}: {(error.strerror or 'cannot be read').lower()}") from error
    return decode_document(content, file, kind, schema, what=what, most_bytes=most_bytes, renamed=renamed)


def decode_document(
    content: bytes | str,
    path: str | Path,
    kind: type[Document],
    schema: str,
    *,
    what: str,
    most_bytes: int,
    renamed: Callable[[dict[str, Any]], dict[str, Any]] = lambda raw: raw,
) -> Document:
    """The document in ``content``; ``path`` is named in errors, which are those of ``read_document``.

    ``renamed``: gives the keys of the file the names of the fields.
    """
    if len(content) > most_bytes:
        raise DataError(f"{path}: larger than {most_bytes >> 20} MiB, not {what}")
    try:
        raw = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({_one_line(error)})") from error
    found = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(raw, dict) or found != schema:
        raise DataError(f"{path}: its schema is {repr(found)[:60]}; this perfscope reads {schema!r}")
    return convert_document(renamed(raw), path, kind, what=what)


def convert_document(raw: Any, path: str | Path, kind: type[Document], *, what: str) -> Document:
    """The document of plain dicts and lists; ``path`` is named in the ``DataError`` where they are none."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: not {what}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    """Its text without line ends: names of the file stand in it."""
    return " ".join(str(error).split())[:MOST_SAID]


def schema_of(kind: type[Any], schema: str, *, what: str) -> dict[str, Any]:
    """JSON Schema 2020-12 of a document, made from the types that read it.

    Other keys are allowed, because within a version they are only added; no key has a default, because all are written.
    """
    _, parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    whole = parts.pop(kind.__name__)
    whole["properties"]["schema"] = {"const": schema}
    result: dict[str, Any] = _plain(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"{what}, {schema}",
            **{key: value for key, value in whole.items() if key != "title"},
            "$defs": dict(sorted(parts.items())),
        }
    )
    return result


def _plain(value: Any) -> Any:
    """As JSON holds it, in an order of its own and without defaults."""
    if isinstance(value, dict):
        return {key: _plain(value) for key, value in value.items() if key != "default"}
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return sorted(items, key=json.dumps) if all(isinstance(item, dict) for item in items) else items
    return value
