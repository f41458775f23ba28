"""The packets of a Perfetto trace, in pieces of bounded size; compressed ones are unpacked in their place."""

from __future__ import annotations

import mmap
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.readers.perfetto_trace.walk import Buffer, Int
from perfscope.profiler.errors import DataError

Data = bytes | mmap.mmap

PIECE = 4 << 20
"""Bytes of packets that are read at once: some 100 MB of columns while it lasts."""
LARGEST_PACKET = 256 << 20
"""A packet holds an event, strings, or a compressed buffer of at most 512 kB; nothing that is a trace comes near."""
LARGEST_UNPACKED = 8 << 30
"""Bytes that all compressed packets of a file may come to."""

_PACKET = 0x0A
_COMPRESSED = b"\x92\x03"
_ZSTD = b"\xaa\x08"
_LONGEST_VARINT = 10


@dataclass(slots=True, kw_only=True)
class Left:
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


def pieces(data: Data, shown: str, left: Left, *, nested: bool = False) -> Iterator[Piece]:
    """All packets in order. ``DataError`` if the data is cut off within one, or holds anything else."""
    size = len(data)
    place = begin = 0
    starts, ends = array("q"), array("q")
    while place < size:
        if data[place] != _PACKET:
            raise DataError(f"{shown}: cut off or corrupt: byte {place:,} begins no packet")
        length, place = _length(data, place + 1, shown)
        if place + length > size:
            raise DataError(
                f"{shown}: cut off: byte {place:,} claims a packet of {length:,} bytes where {size - place:,} are left"
            )
        if length > LARGEST_PACKET:
            raise DataError(f"{shown}: a packet of {length:,} bytes: refused")
        mark = data[place] if length > 2 else 0
        if mark == _COMPRESSED[0] and data[place + 1] == _COMPRESSED[1]:
            yield from _piece(data, begin, starts, ends)
            if nested:
                raise DataError(f"{shown}: corrupt: compressed packets within compressed packets")
            yield from pieces(_unpacked(bytes(data[place : place + length]), shown, left), shown, left, nested=True)
            begin, starts, ends = place + length, array("q"), array("q")
        elif mark == _ZSTD[0] and data[place + 1] == _ZSTD[1]:
            left.zstd += 1
        else:
            starts.append(place - begin)
            ends.append(place + length - begin)
        place += length
        if place - begin >= PIECE:
            yield from _piece(data, begin, starts, ends)
            begin, starts, ends = place, array("q"), array("q")
    yield from _piece(data, begin, starts, ends)


def _length(data: Data, place: int, shown: str) -> tuple[int, int]:
    """The varint at ``place``, and where it ends."""
    length = shift = 0
    for position in range(place, min(len(data), place + _LONGEST_VARINT)):
        byte = data[position]
        length |= (byte & 0x7F) << shift
        if byte < 0x80:
            return length, position + 1
        shift += 7
    raise DataError(f"{shown}: cut off or corrupt at byte {place:,}")


def _piece(data: Data, begin: int, starts: array[int], ends: array[int]) -> Iterator[Piece]:
    if starts:
        yield Piece(
            buffer=Buffer(bytes(data[begin : begin + ends[-1]])),
            start=np.array(starts, np.int64),
            end=np.array(ends, np.int64),
        )


def _unpacked(packet: bytes, shown: str, left: Left) -> bytes:
    """The packets within one (field 50, zlib), no more than the file may come to."""
    length, place = _length(packet, 2, shown)
    packed = packet[place : place + length]
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
