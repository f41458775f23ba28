"""The outer frame of an XSpace: where its planes and their lines lie, without decoding what is in them.

Nothing is allocated by a size that the file claims: a length that reaches beyond the data is refused
before anything is read. A message of the outer levels that is cut off therefore never passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.model.errors import DataError
from perfscope.model.wire import Data, Field, WireError, fields, packed

_PLANES, _ERRORS, _WARNINGS, _HOSTNAMES = 1, 2, 3, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Where the planes of an XSpace lie, as (start, end) offsets."""

    planes: tuple[tuple[int, int], ...]
    ends_with_host: bool
    """The names of the hosts come after the planes: a profiler writes them last, so nothing is cut off."""
    errors: int
    """Errors that the profiler reported while it made the planes."""


def space(data: Data, shown: str) -> Space:
    """The planes of a file. ``DataError`` if it is no XSpace, or is cut off or corrupt."""
    planes: list[tuple[int, int]] = []
    hosts, errors = False, 0
    for part in parts(data, 0, len(data), shown):
        if part.number == _PLANES:
            planes.append((part.start, part.end))
            hosts = False
        elif part.number == _HOSTNAMES:
            hosts = True
        elif part.number == _ERRORS:
            errors += 1
        elif part.number != _WARNINGS:
            raise DataError(f"{shown}: cut off or corrupt: not an XSpace (unknown field at byte {part.begin:,})")
    return Space(planes=tuple(planes), ends_with_host=hosts, errors=errors)


def parts(data: Data, start: int, end: int, shown: str) -> Iterator[Field]:
    """The fields of the message at ``[start, end)`` in written order; ``DataError`` if one reaches beyond it."""
    try:
        yield from fields(data, start, end)
    except WireError as error:
        raise DataError(f"{shown}: cut off or corrupt: {error}") from error


def numbers(data: Data, part: Field, shown: str) -> Iterator[int]:
    """The numbers of one field of a repeated number, which may be packed."""
    try:
        yield from packed(data, part.start, part.end)
    except WireError as error:
        raise DataError(f"{shown}: cut off or corrupt: {error}") from error
