"""Protocol buffers read by columns: the fields of many messages at once, without an object for any of them.

All messages are walked in step: a round reads the next field of each that has one left. Numbers come out of 64-bit
words, so a varint of up to eight bytes is one gather and a few operations on whole columns.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from perfscope.model import wire
from perfscope.model.errors import DataError
from perfscope.model.trace.columns import Array
from perfscope.model.wire import BYTES, FIXED32, FIXED64, VARINT, Data

Int = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_ROOM = 32
"""Padding bytes after the data, which reads of whole words may touch."""
_STOPS = np.uint64(0x8080808080808080)
_LAST_BYTE = np.uint64(0x80) << np.arange(0, 64, 8, dtype=np.uint64)
"""The lowest bit of ``_STOPS`` that says so, for a varint of 1 to 8 bytes."""


class Buffer:
    """Bytes to walk, with padding after them."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        held = np.frombuffer(data + bytes(_ROOM), np.uint8)
        self.bytes: npt.NDArray[np.uint8] = held
        self.words: Words = np.ndarray((len(held) - 7,), "<u8", buffer=held, strides=(1,))

    def text(self, start: int, end: int) -> str:
        """UTF-8 at ``[start, end)``; what is none is replaced."""
        return self.data[start:end].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """Fields of several messages as columns of equal length, the fields of one message in their order."""

    row: Int
    """Which message it is of."""
    number: Int
    a: Int
    """The number (or the bits of a fixed one); of bytes where they begin."""
    b: Int
    """Of bytes where they end; otherwise -1."""

    def of(self, number: int) -> Fields:
        """The fields of that number."""
        return self.take(self.number == number)

    def take(self, chosen: Array) -> Fields:
        """Those chosen by flags or places."""
        return Fields(row=self.row[chosen], number=self.number[chosen], a=self.a[chosen], b=self.b[chosen])

    def messages(self) -> Fields:
        """Those that hold bytes."""
        return self.take(self.b >= 0)

    def numbers(self) -> Fields:
        """Those that hold a number."""
        return self.take(self.b < 0)

    def column(self, size: int, blank: int) -> Int:
        """The number of each of ``size`` messages, the last one where it is there twice; ``blank`` where it is not."""
        result = np.full(size, blank, np.int64)
        result[self.row] = self.a
        return result


def walk(buffer: Buffer, start: Int, end: Int, shown: str) -> Fields:
    """The fields of the messages at ``[start[i], end[i])``. ``DataError`` if one reaches beyond its message."""
    rows = np.flatnonzero(start < end)
    positions, limit = start[rows], end[rows]
    rounds: list[tuple[Int, Int, Int, Int]] = []
    while len(rows):
        key, positions = varint(buffer, positions)
        number, kind = key >> 3, key & 7
        begin = positions
        value = np.zeros(len(rows), np.int64)
        stop = np.full(len(rows), -1, np.int64)
        positions = positions.copy()
        counted = (kind == VARINT) | (kind == BYTES)
        value[counted], positions[counted] = varint(buffer, begin[counted])
        sized = kind == BYTES
        if ((value[sized] < 0) | (value[sized] > limit[sized] - positions[sized])).any():
            raise _corrupt(shown)
        stop[sized] = positions[sized] + value[sized]
        value[sized], positions[sized] = positions[sized], stop[sized]
        for of_kind, size in ((FIXED64, 8), (FIXED32, 4)):
            fixed = kind == of_kind
            if fixed.any():
                inside = fixed & (begin + size <= limit)
                if (fixed & ~inside).any():
                    raise _corrupt(shown)
                bits = buffer.words[begin[fixed]]
                value[fixed] = (bits if size == 8 else bits & np.uint64(0xFFFFFFFF)).view(np.int64)
                positions[fixed] += size
        if (positions > limit).any() or (number == 0).any() or not np.isin(kind, (0, 1, 2, 5)).all():
            raise _corrupt(shown)
        rounds.append((rows, number, value, stop))
        left = positions < limit
        rows, positions, limit = rows[left], positions[left], limit[left]
    if not rounds:
        none = np.empty(0, np.int64)
        return Fields(row=none, number=none, a=none, b=none)
    columns = [np.concatenate(parts) for parts in zip(*rounds, strict=True)]
    order = np.argsort(columns[0], kind="stable")  # of one message the rounds are in order already
    row, number, a, b = (column[order] for column in columns)
    return Fields(row=row, number=number, a=a, b=b)


def varint(buffer: Buffer, positions: Int) -> tuple[Int, Int]:
    """The numbers at ``place`` (their low 64 bits) and the places after them."""
    word = buffer.words[positions]
    stops = ~word & _STOPS
    lowest = stops & (~stops + np.uint64(1))
    keep = (lowest << np.uint64(1)) - np.uint64(1)  # all bits up to the last byte's; all of them if it wraps
    bits = word & keep & np.uint64(0x7F7F7F7F7F7F7F7F)
    bits = (bits & np.uint64(0x007F007F007F007F)) | ((bits & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
    bits = (bits & np.uint64(0x00003FFF00003FFF)) | ((bits & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    bits = (bits & np.uint64(0x000000000FFFFFFF)) | ((bits & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
    size = np.searchsorted(_LAST_BYTE, lowest) + 1
    if (lowest == 0).any():
        bits, size = _long(buffer, positions, bits, size, lowest == 0)
    return bits.view(np.int64), positions + size


def _long(buffer: Buffer, positions: Int, bits: Words, size: Int, rows: Array) -> tuple[Words, Int]:
    """Numbers of nine and ten bytes. Of an eleventh nothing is known: the tenth ends it, as in other readers."""
    at = positions[rows] + 8
    ninth, tenth = buffer.bytes[at].astype(np.uint64), buffer.bytes[at + 1].astype(np.uint64)
    more = ninth >= 0x80
    high = (ninth & np.uint64(0x7F)) << np.uint64(56)
    high |= np.where(more, (tenth & np.uint64(1)) << np.uint64(63), np.uint64(0))
    bits[rows] |= high
    size[rows] = np.where(more, 10, 9)
    return bits, size


def _corrupt(shown: str) -> DataError:
    return DataError(f"{shown}: cut off or corrupt: a packet that reaches beyond its end, or is none")


# The packets of a Perfetto trace, in pieces of bounded size; compressed ones are unpacked in their place.


PIECE = 4 << 20
"""Bytes of packets that are read at once: some 100 MB of columns while it lasts."""
LARGEST_PACKET = 256 << 20
"""A packet holds an event, strings, or a compressed buffer of at most 512 kB; nothing that is a trace comes near."""
LARGEST_UNPACKED = 8 << 30
"""Bytes that all compressed packets of a file may come to."""

_PACKET = 0x0A
_COMPRESSED = b"\x92\x03"
_ZSTD = b"\xaa\x08"


@dataclass(slots=True, kw_only=True)
class UnpackState:
    """What of a file has been unpacked, and what could not be."""

    unpacked: int = 0
    zstd: int = 0
    """Packets compressed with zstandard, which Python 3.11 cannot unpack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Packets in a row: their bytes, and where each lies in them."""

    buffer: Buffer
    start: Int
    end: Int


def pieces(data: Data, shown: str, left: UnpackState, *, nested: bool = False) -> Iterator[Piece]:
    """All packets in order. ``DataError`` if the data is cut off within one, or holds anything else."""
    size = len(data)
    index = begin = 0
    starts, ends = array("q"), array("q")
    while index < size:
        if data[index] != _PACKET:
            raise DataError(f"{shown}: cut off or corrupt: byte {index:,} begins no packet")
        length, index = _length(data, index + 1, shown)
        if index + length > size:
            raise DataError(
                f"{shown}: cut off: byte {index:,} claims a packet of {length:,} bytes where {size - index:,} are left"
            )
        if length > LARGEST_PACKET:
            raise DataError(f"{shown}: a packet of {length:,} bytes: refused")
        mark = data[index] if length > 2 else 0
        if mark == _COMPRESSED[0] and data[index + 1] == _COMPRESSED[1]:
            yield from _piece(data, begin, starts, ends)
            if nested:
                raise DataError(f"{shown}: corrupt: compressed packets within compressed packets")
            yield from pieces(_unpacked(bytes(data[index : index + length]), shown, left), shown, left, nested=True)
            begin, starts, ends = index + length, array("q"), array("q")
        elif mark == _ZSTD[0] and data[index + 1] == _ZSTD[1]:
            left.zstd += 1
        else:
            starts.append(index - begin)
            ends.append(index + length - begin)
        index += length
        if index - begin >= PIECE:
            yield from _piece(data, begin, starts, ends)
            begin, starts, ends = index, array("q"), array("q")
    yield from _piece(data, begin, starts, ends)


def _length(data: Data, index: int, shown: str) -> tuple[int, int]:
    try:
        return wire.varint(data, index, len(data))
    except wire.WireError as error:
        raise DataError(f"{shown}: cut off or corrupt: {error}") from error


def _piece(data: Data, begin: int, starts: array[int], ends: array[int]) -> Iterator[Piece]:
    if starts:
        yield Piece(
            buffer=Buffer(bytes(data[begin : begin + ends[-1]])),
            start=np.array(starts, np.int64),
            end=np.array(ends, np.int64),
        )


def _unpacked(packet: bytes, shown: str, left: UnpackState) -> bytes:
    """The packets within one (field 50, zlib), no more than the file may come to."""
    length, index = _length(packet, 2, shown)
    packed = packet[index : index + length]
    room = min(LARGEST_PACKET, LARGEST_UNPACKED - left.unpacked)
    decoder = zlib.decompressobj()
    try:
        content = decoder.decompress(packed, room)
    except zlib.error as error:
        raise DataError(f"{shown}: corrupt: compressed packets that are none") from error
    if len(content) >= room or decoder.unconsumed_tail:
        raise DataError(f"{shown}: compressed packets of more than {room:,} bytes: refused")
    if not decoder.eof:
        raise DataError(f"{shown}: cut off or corrupt: compressed packets that do not end")
    left.unpacked += len(content)
    return content
