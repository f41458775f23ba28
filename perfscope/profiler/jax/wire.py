"""The little of protobuf that a capture needs: compiled programs out of a trace, and the events they will leave.

Capture runs in the user's process, where no protobuf package can be assumed; readers have the whole schema.
Field numbers: xplane.proto and hlo.proto of XLA.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from perfscope.model import wire

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
    for number, kind, _, start, end in wire.fields(message, 0, len(message)):
        yield number, wire.varint(message, start, end)[0] if kind == wire.VARINT else message[start:end]


def without_hosts(space: bytes) -> bytes:
    """A serialized XSpace without the names of the machines it was recorded on; ``ValueError`` if it is malformed."""
    kept = []
    for field in wire.fields(space, 0, len(space)):
        if field.kind != wire.BYTES:
            raise wire.WireError(f"wire type {field.kind}, where an XSpace has messages and texts only,", field.begin)
        if field.number != _HOSTNAMES:
            kept.append(memoryview(space)[field.begin : field.end])
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
    return bytes([_HLO_MODULE << 3 | wire.BYTES]) + wire.write_varint(len(module)) + module


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
    identity = 0
    instructions = []
    for number, kind, _, start, end in wire.fields(message, 0, len(message)):
        if number == _COMPUTATION_ID and kind == wire.VARINT:
            identity, _ = wire.varint(message, start, end)
        elif number == _COMPUTATION_INSTRUCTIONS and kind == wire.BYTES:
            instructions.append(_instruction(message, start, end))
    return identity, instructions


def _instruction(message: bytes, begin: int, after: int) -> tuple[bytes, tuple[int, ...], int]:
    opcode = b""
    called: list[int] = []
    trips = UNKNOWN_TRIPS
    for number, kind, _, start, end in wire.fields(message, begin, after):
        if number == _OPCODE and kind == wire.BYTES:
            opcode = message[start:end]
        elif number == _CALLED:
            called += wire.packed(message, start, end)
        elif number == _BACKEND_CONFIG and kind == wire.BYTES and (found := _TRIPS.search(message, start, end)):
            trips = int(found[1])
    return opcode, tuple(called), trips
