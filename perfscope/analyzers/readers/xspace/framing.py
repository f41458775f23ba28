"""The outer frame of an XSpace: where its planes and their lines lie, without decoding what is in them.

Nothing is allocated by a size that the file claims: a length that reaches beyond the data is refused
before anything is read. A message of the outer levels that is cut off therefore never passes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.model.errors import DataError

Data = bytes | mmap.mmap

_PLANES, _ERRORS, _WARNINGS, _HOSTNAMES = 1, 2, 3, 4
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One field of a message: its number, where the whole field begins, and its content."""

    number: int
    begin: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Where the planes of an XSpace lie, as (start, end) offsets."""

    planes: tuple[tuple[int, int], ...]
    ends_with_host: bool
    """The names of the hosts stand behind the planes: a profiler writes them last, so nothing is cut off."""
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


def parts(data: Data, start: int, end: int, shown: str) -> Iterator[Part]:
    """The fields of the message at ``[start, end)`` in written order; ``DataError`` if one reaches beyond it."""
    place = start
    while place < end:
        begin = place
        key, place = _varint(data, place, end, shown)
        number, kind = key >> 3, key & 7
        if kind == _BYTES:
            length, place = _varint(data, place, end, shown)
            content = place
            place += length
        elif kind == _VARINT:
            content = place
            _, place = _varint(data, place, end, shown)
        elif kind in (_FIXED64, _FIXED32):
            content = place
            place += 8 if kind == _FIXED64 else 4
        else:
            raise DataError(f"{shown}: cut off or corrupt: not an XSpace (byte {begin:,})")
        if not number:
            raise DataError(f"{shown}: cut off or corrupt: not an XSpace (byte {begin:,})")
        if place > end:
            raise DataError(
                f"{shown}: cut off or corrupt: byte {begin:,} claims {place - content:,} bytes where "
                f"{end - content:,} are left"
            )
        yield Part(number=number, begin=begin, start=content, end=place)


def numbers(data: Data, part: Part, shown: str) -> Iterator[int]:
    """The numbers of one field of a repeated number, which may be packed."""
    place = part.start
    while place < part.end:
        number, place = _varint(data, place, part.end, shown)
        yield number


def _varint(data: Data, place: int, end: int, shown: str) -> tuple[int, int]:
    value = shift = 0
    for position in range(place, min(end, place + _LONGEST_VARINT)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
    raise DataError(f"{shown}: cut off or corrupt at byte {place:,}")
