"""The little of protobuf that a capture needs: compiled programs out of a trace, and the events they will leave.

Capture runs in the user's process, where no protobuf package can be assumed; readers have the whole schema.
Field numbers: xplane.proto and hlo.proto of XLA.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

MOST_NESTED = 64
"""Calls below calls followed when events are estimated; XLA's programs have a handful."""
UNKNOWN_TRIPS = 1
"""Turns of a loop whose number XLA does not know: the estimate is a lower bound then."""

# XSpace, XPlane, map entries, XEventMetadata, XStat
_HOSTNAMES = 4
_PLANES, _PLANE_NAME, _PLANE_EVENTS, _PLANE_STATS = 1, 2, 4, 5
_VALUE = 2
_METADATA_ID, _METADATA_NAME, _METADATA_STATS = 1, 2, 5
_STAT_METADATA, _STAT_BYTES = 1, 6
# HloProto, HloModuleProto, HloComputationProto, HloInstructionProto
_HLO_MODULE = 1
_MODULE_NAME, _MODULE_COMPUTATIONS, _MODULE_ID, _MODULE_ENTRY = 1, 3, 5, 6
_COMPUTATION_INSTRUCTIONS, _COMPUTATION_ID = 2, 5
_OPCODE, _CALLED, _BACKEND_CONFIG = 2, 38, 43

METADATA_PLANE = b"/host:metadata"
HLO_STAT = b"Hlo Proto"
SILENT = frozenset({b"parameter", b"constant", b"get-tuple-element", b"tuple", b"bitcast"})
"""Opcodes that nothing is executed for."""
_TRIPS = re.compile(rb'"known_trip_count"\s*:\s*\{\s*"n"\s*:\s*"?(\d+)')


class Module(NamedTuple):
    """A compiled program found in a trace: its name there (``jit_step(52)``) and its serialized HloProto."""

    name: str
    proto: bytes


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of a message, in order; ``ValueError`` if it is cut off or malformed."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if at + size > end:
            raise ValueError(f"cut off at byte {at}")
        yield number, message[at : at + size]
        at += size


def without_hosts(space: bytes) -> bytes:
    """A serialized XSpace without the names of the machines it was recorded on; ``ValueError`` if it is malformed."""
    kept = []
    at, end = 0, len(space)
    while at < end:
        tag, behind = _varint(space, at)
        if tag & 7 != 2:
            raise ValueError(f"wire type {tag & 7} at byte {at}: an XSpace has messages and texts only")
        size, behind = _varint(space, behind)
        if behind + size > end:
            raise ValueError(f"cut off at byte {behind}")
        if tag >> 3 != _HOSTNAMES:
            kept.append(memoryview(space)[at : behind + size])
        at = behind + size
    return b"".join(kept)


def modules(space: bytes) -> list[Module]:
    """The compiled programs in a serialized XSpace; ``ValueError`` if it is malformed."""
    protos = []
    for number, plane in fields(space):
        if number == _PLANES and isinstance(plane, bytes) and _name(plane, _PLANE_NAME) == METADATA_PLANE:
            protos += _of_plane(plane)
    return protos


def name_and_id(module: bytes) -> tuple[str, int]:
    """Name and unique number of a serialized HloModuleProto."""
    name, number = "", 0
    for field, value in fields(module):
        if field == _MODULE_NAME and isinstance(value, bytes):
            name = value.decode(errors="replace")
        elif field == _MODULE_ID and isinstance(value, int):
            number = value
    return name, number


def module_of(proto: bytes) -> bytes:
    """The HloModuleProto in an HloProto, serialized; empty if there is none."""
    return next((value for number, value in fields(proto) if number == _HLO_MODULE and isinstance(value, bytes)), b"")


def as_proto(module: bytes) -> bytes:
    """An HloProto, serialized, that holds the serialized HloModuleProto and nothing else."""
    size, head = len(module), bytearray([_HLO_MODULE << 3 | 2])
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head) + module


def event_count(module: bytes) -> int:
    """Events that one run of a serialized HloModuleProto leaves in a trace: instructions times turns of their loops."""
    computations: dict[int, list[tuple[bytes, tuple[int, ...], int]]] = {}
    entry = 0
    for field, value in fields(module):
        if field == _MODULE_ENTRY and isinstance(value, int):
            entry = value
        elif field == _MODULE_COMPUTATIONS and isinstance(value, bytes):
            number, instructions = _computation(value)
            computations[number] = instructions
    known: dict[int, int] = {}

    def count(number: int, depth: int) -> int:
        if number not in known:
            known[number] = 0  # a cycle, which no program has, adds nothing
            total = 0
            for opcode, called, trips in computations.get(number, ()) if depth < MOST_NESTED else ():
                total += opcode not in SILENT
                if opcode in (b"while", b"call", b"conditional"):
                    total += trips * sum(count(one, depth + 1) for one in called)
            known[number] = total
        return known[number]

    return count(entry, 0)


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError(f"cut off at byte {at}")


def _name(message: bytes, number: int) -> bytes:
    return next((value for field, value in fields(message) if field == number and isinstance(value, bytes)), b"")


def _of_plane(plane: bytes) -> list[Module]:
    hlo_stat = 0
    metadata = []
    for number, entry in fields(plane):
        if number not in (_PLANE_EVENTS, _PLANE_STATS) or not isinstance(entry, bytes):
            continue
        value = _name(entry, _VALUE)
        if number == _PLANE_EVENTS:
            metadata.append(value)
        elif _name(value, _METADATA_NAME) == HLO_STAT:
            hlo_stat = next((one for field, one in fields(value) if field == _METADATA_ID and isinstance(one, int)), 0)
    modules = []
    for value in metadata:
        for field, stat in fields(value):
            if field != _METADATA_STATS or not isinstance(stat, bytes):
                continue
            values = dict(fields(stat))
            proto = values.get(_STAT_BYTES)
            if values.get(_STAT_METADATA) == hlo_stat and isinstance(proto, bytes):
                modules.append(Module(_name(value, _METADATA_NAME).decode(errors="replace"), proto))
    return modules


def _computation(message: bytes) -> tuple[int, list[tuple[bytes, tuple[int, ...], int]]]:
    number = 0
    instructions = []
    for field, value in fields(message):
        if field == _COMPUTATION_ID and isinstance(value, int):
            number = value
        elif field == _COMPUTATION_INSTRUCTIONS and isinstance(value, bytes):
            instructions.append(_instruction(value))
    return number, instructions


def _instruction(message: bytes) -> tuple[bytes, tuple[int, ...], int]:
    opcode = b""
    called: list[int] = []
    trips = UNKNOWN_TRIPS
    for field, value in fields(message):
        if field == _OPCODE and isinstance(value, bytes):
            opcode = value
        elif field == _CALLED:
            called += [value] if isinstance(value, int) else _packed(value)
        elif field == _BACKEND_CONFIG and isinstance(value, bytes) and (found := _TRIPS.search(value)):
            trips = int(found[1])
    return opcode, tuple(called), trips


def _packed(message: bytes) -> list[int]:
    at, values = 0, []
    while at < len(message):
        value, at = _varint(message, at)
        values.append(value)
    return values
