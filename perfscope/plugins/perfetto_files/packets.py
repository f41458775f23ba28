"""Decoded packets of a Perfetto trace, one by one; compressed ones are decompressed in place."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from perfscope.analyzers.hlo import decode
from perfscope.model import wire
from perfscope.model.errors import DataError
from perfscope.model.wire import Data

LARGEST_PACKET = 256 << 20
"""Maximum bytes of a packet. It holds an event, strings, or a compressed buffer of at most 512 kB."""
LARGEST_UNPACKED = 8 << 30
"""Maximum bytes of all decompressed packets of a file."""

PACKET = 0x0A
"""The key of each packet."""


class Packets:
    """All packets of a file in order."""

    def __init__(self, data: Data, shown: str) -> None:
        self._data, self._shown = data, shown
        self._unpacked = 0

    def __iter__(self) -> Iterator[Any]:
        """Yield each ``perfetto.TracePacket``. ``DataError`` if the data is truncated, or holds anything else."""
        return self._of(self._data, nested=False)

    def _of(self, data: Data, *, nested: bool) -> Iterator[Any]:
        shown, size, index = self._shown, len(data), 0
        while index < size:
            if data[index] != PACKET:
                raise DataError(f"{shown}: cut off or corrupt: byte {index:,} is not the begin of a packet")
            try:
                length, index = wire.varint(data, index + 1, size)
            except wire.WireError as error:
                raise DataError(f"{shown}: cut off or corrupt: {error}") from error
            if index + length > size:
                raise DataError(
                    f"{shown}: cut off: byte {index:,} claims a packet of {length:,} bytes where {size - index:,} "
                    "are left"
                )
            if length > LARGEST_PACKET:
                raise DataError(f"{shown}: a packet of {length:,} bytes: refused")
            packet = decode("perfetto.TracePacket", data[index : index + length], shown)
            index += length
            if not packet.compressed_packets:
                yield packet
            elif nested:
                raise DataError(f"{shown}: corrupt: compressed packets within compressed packets")
            else:
                yield from self._of(self._inflated(packet.compressed_packets), nested=True)

    def _inflated(self, compressed: bytes) -> bytes:
        """Return the packets compressed with zlib, within the limit of the file."""
        room = min(LARGEST_PACKET, LARGEST_UNPACKED - self._unpacked)
        decoder = zlib.decompressobj()
        try:
            content = decoder.decompress(compressed, room)
        except zlib.error as error:
            raise DataError(f"{self._shown}: corrupt: invalid compressed packets") from error
        if len(content) >= room or decoder.unconsumed_tail:
            raise DataError(f"{self._shown}: compressed packets of more than {room:,} bytes: refused")
        if not decoder.eof:
            raise DataError(f"{self._shown}: cut off or corrupt: compressed packets that do not end")
        self._unpacked += len(content)
        return content
