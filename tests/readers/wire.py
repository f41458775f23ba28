"""Protocol buffers by hand: a walker and a writer of the wire format that share no code with the reader."""

from __future__ import annotations

import gzip
import struct
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Message = dict[int, list[Any]]


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])


def field(number: int, value: int | float | str | bytes) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    place = 0

    def read() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = data[place]
            place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while place < len(data):
        key = read()
        kind = key & 7
        if kind == 0:
            yield key >> 3, read()
            continue
        size = {1: 8, 5: 4}.get(kind) or read()
        yield key >> 3, data[place : place + size]
        place += size


def message(data: bytes) -> Message:
    found: Message = defaultdict(list)
    for number, value in fields(data):
        found[number].append(value)
    return found


def content(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def one(found: Message, number: int, default: Any = 0) -> Any:
    """Last value of a field, as proto3 has it."""
    return found[number][-1] if found.get(number) else default


class RawPlane:
    """A plane as dictionaries: ``events`` of a line are (name, offset_ps, duration_ps, stats)."""

    def __init__(self, data: bytes) -> None:
        found = message(data)
        self.name: str = one(found, 2, b"").decode()
        self.stat_names = {
            one(message(entry), 1): one(message(one(message(entry), 2, b"")), 2, b"").decode() for entry in found[5]
        }
        described = {one(message(entry), 1): message(one(message(entry), 2, b"")) for entry in found[4]}
        self.names = {key: one(entry, 2, b"").decode() for key, entry in described.items()}
        self.shared = {key: self.stats(entry[5]) for key, entry in described.items()}
        self.own = self.stats(found[6])
        self.lines = [message(line) for line in found[3]]

    def stats(self, entries: list[bytes]) -> dict[str, Any]:
        read: dict[str, Any] = {}
        for entry in map(message, entries):
            name = self.stat_names.get(one(entry, 1), "")
            if entry[2]:
                read[name] = struct.unpack("<d", entry[2][-1])[0]
            elif entry[5]:
                read[name] = entry[5][-1].decode()
            elif entry[6]:
                read[name] = entry[6][-1]
            elif entry[7]:
                read[name] = self.stat_names.get(entry[7][-1], "")
            else:
                read[name] = signed(one(entry, 3) or one(entry, 4))
        return read

    def events(self, line: Message) -> Iterator[tuple[str, int, int, dict[str, Any]]]:
        for event in map(message, line[4]):
            name = self.names.get(one(event, 1), "")
            yield name, signed(one(event, 2)), one(event, 3), self.stats(event[4])


def planes(data: bytes) -> list[RawPlane]:
    return [RawPlane(plane) for plane in message(data)[1]]


class SpaceWriter:
    """Writes an XSpace: planes of lines of events, names and stats numbered as they come."""

    def __init__(self) -> None:
        self.planes: list[bytes] = []

    def plane(self, name: str, lines: dict[str, list[tuple[Any, ...]]], *, at_ns: int = 0, **stats: Any) -> SpaceWriter:
        """``lines``: name -> events (name, start_ps, end_ps, stats); the n-th line has id n + 1."""
        names: dict[str, int] = {}
        stat_names: dict[str, int] = {}

        def code(table: dict[str, int], text: str) -> int:
            return table.setdefault(text, len(table) + 1)

        def stat(key: str, value: Any) -> bytes:
            number = (
                5 if isinstance(value, str) else 6 if isinstance(value, bytes) else 2 if isinstance(value, float) else 4
            )
            return field(1, code(stat_names, key)) + field(number, value)

        body = b""
        for index, (line, events) in enumerate(lines.items()):
            written = field(1, index + 1) + field(2, line) + field(3, at_ns)
            for event, start, end, *more in events:
                content = field(1, code(names, event)) + field(2, start) + field(3, end - start)
                content += b"".join(field(4, stat(key, value)) for key, value in (more[0] if more else {}).items())
                written += field(4, content)
            body += field(3, written)
        own = b"".join(field(6, stat(key, value)) for key, value in stats.items())
        for number, table in ((4, names), (5, stat_names)):
            for text, key in table.items():
                body += field(number, field(1, key) + field(2, field(1, key) + field(2, text)))
        self.planes.append(field(2, name) + body + own)
        return self

    def metadata(self, **modules: bytes) -> SpaceWriter:
        """``/host:metadata`` with serialized modules by name."""
        body = field(2, "/host:metadata")
        for index, (name, proto) in enumerate(modules.items()):
            stats = field(5, field(1, 1) + field(6, proto))
            body += field(4, field(1, index + 1) + field(2, field(1, index + 1) + field(2, name) + stats))
        body += field(5, field(1, 1) + field(2, field(1, 1) + field(2, "Hlo Proto")))
        self.planes.append(body)
        return self

    def bytes(self, *, hosts: bool = True) -> bytes:
        return b"".join(field(1, plane) for plane in self.planes) + (field(4, "a-host") if hosts else b"")
