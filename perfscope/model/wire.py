"""The protobuf wire format: numbers and the fields of a message, without a schema.

Pure Python: capture uses it inside the user's process, where neither numpy nor protobuf can be assumed.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

Data = bytes | memoryview | mmap.mmap

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types. 3 and 4 delimit groups, which proto3 does not have."""

_LONGEST_VARINT = 10
_MASK = (1 << 64) - 1


class WireError(ValueError):
    """Bytes that are not a field, or that end within one."""

    def __init__(self, problem: str, offset: int) -> None:
        super().__init__(f"{problem} at byte {offset:,}")
        self.offset = offset


class _TruncatedError(WireError):
    """The data ends within a varint."""


class Field(NamedTuple):
    """One field of a message: the position of its key, and its content."""

    number: int
    kind: int
    begin: int
    start: int
    end: int


def varint(data: Data, index: int, end: int) -> tuple[int, int]:
    """The low 64 bits of the number at ``at``, and the offset after it. ``WireError`` if it ends beyond ``end``."""
    value = shift = 0
    for position in range(index, min(end, index + _LONGEST_VARINT)):
        byte = data[position]
        if byte < 0x80:
            return (value | byte << shift) & _MASK, position + 1
        value |= (byte & 0x7F) << shift
        shift += 7
    if end - index < _LONGEST_VARINT:
        raise _TruncatedError("truncated varint", index)
    raise WireError("varint of more than 10 bytes", index)


def fields(data: Data, start: int, end: int, *, lenient: bool = False) -> Iterator[Field]:
    """The fields of the message at ``[start, end)`` in written order; ``WireError`` for an incomplete field.

    ``lenient``: the data may be cut off at ``end``. The last field may then claim to end beyond it, and a field whose
    key or length is cut off is left out.
    """
    index = start
    try:
        while index < end:
            begin = index
            # One byte is the usual size: a call of varint() for each key and length makes this half as fast.
            key = data[index]
            index += 1
            if key >= 0x80:
                key, index = varint(data, begin, end)
            kind = key & 7
            content = index
            if kind == BYTES:
                size = data[index] if index < end else 0x80
                index += 1
                if size >= 0x80:
                    size, index = varint(data, content, end)
                content = index
                index += size
            elif kind == VARINT:
                _, index = varint(data, index, end)
            elif kind == FIXED64:
                index += 8
            elif kind == FIXED32:
                index += 4
            else:
                raise WireError(f"field of unknown wire type {kind}", begin)
            number = key >> 3
            if not number:
                raise WireError("field number 0", begin)
            if index > end and not lenient:
                raise WireError(f"field of {index - content:,} bytes where {end - content:,} are left", begin)
            yield Field(number, kind, begin, content, index)
    except _TruncatedError:
        if not lenient:
            raise


def packed(data: Data, start: int, end: int) -> Iterator[int]:
    """The numbers in ``[start, end)``: a repeated field that is packed, or the content of one number."""
    index = start
    while index < end:
        value, index = varint(data, index, end)
        yield value


def write_varint(value: int) -> bytes:
    """A number >= 0 (or the two's complement of one below) as a varint."""
    value &= _MASK
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)
