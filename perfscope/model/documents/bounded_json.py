"""JSON documents of perfscope, read as untrusted input: bounded, of one schema, with errors of one line."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from perfscope.model.errors import DataError

Document = TypeVar("Document")

MESSAGE_LIMIT = 300
"""Largest length of a reader's error message."""

MANY = 100_000
"""Entries of a list of which a job may have many: findings, places, ranks."""
SOME = 10_000
"""Largest number of entries of the other lists."""

_LARGEST = 1e30
"""Largest number: more than the FLOPs of any step, and short enough to be printed."""

Number = Annotated[float, msgspec.Meta(ge=-_LARGEST, le=_LARGEST)]
Ns = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Texts = Annotated[tuple[str, ...], msgspec.Meta(max_length=SOME)]


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a document. Keys that are not known are left aside: within a version they are only added."""


class _Head(msgspec.Struct):
    schema: Any = None


def read_bytes(file: Path, most_bytes: int, what: str) -> bytes:
    """The content of a file, unpacked if it is gzip.

    ``DataError`` in one line if the file is missing, cut off, or larger than ``most_bytes``.
    """
    try:
        with file.open("rb") as stream:
            packed = stream.read(2) == b"\x1f\x8b"
            stream.seek(0)
            content = (gzip.GzipFile(fileobj=stream) if packed else stream).read(most_bytes + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{file}: cut off or corrupt inside its gzip stream") from error
    except OSError as error:
        raise DataError(f"{file}: {(error.strerror or 'cannot be read').lower()}") from error
    if len(content) > most_bytes:
        raise DataError(f"{file}: larger than {most_bytes >> 20} MiB, not {what}")
    return content


def read_document(
    file: Path,
    kind: type[Document],
    schema: str,
    *,
    what: str,
    most_bytes: int,
    renamed: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Document:
    """The document in a file, also gzip.

    ``what``: the expected document, ``a manifest``; ``renamed`` as in `decode_document`.
    ``DataError`` in one line if the file is missing, larger than ``most_bytes``, not JSON, or of another schema.
    """
    content = read_bytes(file, most_bytes, what)
    return decode_document(content, file, kind, schema, what=what, most_bytes=most_bytes, renamed=renamed)


def decode_document(
    content: bytes | str,
    path: str | Path,
    kind: type[Document],
    schema: str,
    *,
    what: str,
    most_bytes: int,
    renamed: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Document:
    """Parse the document in ``content``; errors name ``path`` and are those of ``read_document``.

    ``renamed``: maps the keys of the file to the names of the fields.
    """
    if len(content) > most_bytes:
        raise DataError(f"{path}: larger than {most_bytes >> 20} MiB, not {what}")
    _check_schema(content, path, schema)
    try:
        if renamed is not None:
            return msgspec.convert(renamed(msgspec.json.decode(content)), kind)
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: not {what}: {_one_line(error)}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(path, error) from error


def _check_schema(content: bytes | str, path: str | Path, schema: str) -> None:
    try:
        found = msgspec.json.decode(content, type=_Head).schema
    except msgspec.ValidationError:  # no object
        found = None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _no_json(path, error) from error
    if found != schema:
        raise DataError(f"{path}: its schema is {repr(found)[:60]}; this perfscope reads {schema!r}")


def _no_json(path: str | Path, error: Exception) -> DataError:
    return DataError(f"{path}: not valid JSON ({_one_line(error)})")


def read_lines(file: Path, schema: str, *, what: str, most_bytes: int) -> list[bytes]:
    """The lines of JSON in a file, also gzip; the first one names the schema. Errors as of ``read_document``."""
    lines = read_bytes(file, most_bytes, what).splitlines() or [b"{}"]
    _check_schema(lines[0], file, schema)
    return lines


def convert_document(raw: Any, path: str | Path, kind: type[Document], *, what: str) -> Document:
    """Convert plain dicts and lists to the document; a ``DataError`` names ``path`` and the first mismatch."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise DataError(f"{path}: not {what}: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    """The error's text without line ends, because it contains names from the file."""
    return " ".join(str(error).split())[:MESSAGE_LIMIT]


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


_OPTIONAL = ("default", "propertyNames")
"""Keys of a schema that are left out: every value is written, and some versions of msgspec do not name keys."""


def _plain(value: Any) -> Any:
    """The value as JSON types, alternatives sorted, without defaults and indentation of docstrings."""
    if isinstance(value, dict):
        plain = {key: _plain(value) for key, value in value.items() if key not in _OPTIONAL}
        if isinstance(plain.get("description"), str):
            plain["description"] = cleandoc(plain["description"])  # msgspec keeps or removes the indentation
        for key in {"anyOf", "oneOf"} & plain.keys():
            plain[key] = sorted(plain[key], key=json.dumps)
        return plain
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
