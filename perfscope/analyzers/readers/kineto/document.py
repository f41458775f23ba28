"""The document around the events: start and end of the event array, and the allow-listed head."""

from __future__ import annotations

import json
import mmap
import re
from typing import Annotated, Any

import msgspec
from msgspec import Struct

from perfscope.analyzers.devices import device_of_chip, find_device
from perfscope.model.errors import DataError

Buffer = bytes | mmap.mmap

CUT = re.compile(rb"\}\s*,\s*\{")
"""Possible boundary between events. Only a decoder can confirm it, because a string may contain it too."""

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BLANK = b" \t\r\n"
_CUT_TEXT = re.compile(r"\}\s*,\s*\{")
_WHITE = re.compile(rb"\s*")
_WHITE_TEXT = re.compile(r"\s*")

LARGEST_BASE_NS = 2**61
"""The year 2043; up to it, the largest time and duration of an event fit an int64 (see `shard.py`)."""

_LARGEST_NUMBER = 2**63

_TAIL_WINDOW = 1 << 13
"""Bytes from the end in which the end of the events is searched first."""
_LARGEST_TAIL = 1 << 25
"""Maximum bytes of keys after the events. They are usually a few kB; without an end in 32 MiB the file is truncated."""


_MOST_CANDIDATES = 32
"""Maximum number of lists near the end that are tried as the events; each costs a pass over the rest of the file."""


class DeviceProperties(msgspec.Struct):
    """Device properties in a trace."""

    id: int = -1
    name: str = ""
    memory: int = msgspec.field(default=-1, name="totalGlobalMem")
    cores: int = msgspec.field(default=-1, name="numSms")
    major: int = msgspec.field(default=-1, name="computeMajor")
    minor: int = msgspec.field(default=-1, name="computeMinor")
    warp: int = msgspec.field(default=-1, name="warpSize")

    def __post_init__(self) -> None:
        """Take numbers that no column holds for missing."""
        for name in ("id", "memory", "cores"):
            if abs(getattr(self, name)) >= _LARGEST_NUMBER:
                setattr(self, name, -1)

    @property
    def product(self) -> str:
        """Name of the device; for an unnamed AMD device, the product with its properties; ``''`` if unknown."""
        if find_device(self.name) is not None or self.warp != 64:  # Wavefronts of CDNA.
            return self.name
        device = device_of_chip("AMD", (self.major, self.minor), self.cores, memory_bytes=max(0, self.memory))
        return self.name if device is None else device.name


class Distributed(msgspec.Struct):
    """Facts about the job in a trace."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    groups: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="pg_config")
    """Process groups as text. `process_groups.py` parses it, so that a fault there does not lose the rank."""


class Calls(msgspec.Struct):
    """Calls of Python functions that `perfscope run` recorded, of the same length."""

    starts: list[Annotated[int, msgspec.Meta(ge=0, lt=2**62)]] = msgspec.field(name="start_ns")
    lines: list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]] = msgspec.field(name="line")
    """Line of the caller that ran."""
    cells: dict[str, str] = msgspec.field(default_factory=dict)
    """Names of a notebook's cells (``In[3]``) by the file names that the profiler has for them."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for lists of different length."""
        if len(self.starts) != len(self.lines):
            raise ValueError("calls and lines are of different length")


class Head(msgspec.Struct):
    """Top-level keys that are read. Host, user and job names and environment dumps are not read."""

    base_ns: int = msgspec.field(default=0, name="baseTimeNanoseconds")
    devices: list[DeviceProperties] = msgspec.field(default_factory=list, name="deviceProperties")
    distributed: Distributed | None = msgspec.field(default=None, name="distributedInfo")
    with_stack: int = 0
    record_shapes: int = 0
    profile_memory: int = 0
    calls: Calls | None = msgspec.field(default=None, name="perfscopeCalls")


class Document(Struct, frozen=True, kw_only=True):
    """Byte range of the event array's content, and the head."""

    start: int
    end: int
    head: Head


def locate(data: Buffer, path: str) -> Document:
    """Find the event array of ``data``. ``DataError`` without one, or if the file ends inside it."""
    opening = _WHITE.match(data)
    first = opening.end() if opening else 0
    if data[first : first + 1] == b"[":
        before, start = b"", first + 1
    else:
        match = _ARRAY.search(data)
        if match is None:
            raise DataError(f'{path}: no "traceEvents" in it, so not a trace of torch.profiler')
        before, start = data[first : match.start()], match.end()
    end = _array_end(data, start)
    if end is None:
        raise DataError(f"{path}: cut off or corrupt: the event array does not end (read {len(data):,} bytes)")
    return Document(start=start, end=end, head=_head(before, data[end + 1 :], path))


def _array_end(data: Buffer, start: int) -> int | None:
    """Return the position of the ``]`` that closes the events: the first whose rest completes the document."""
    is_list = not data[: start - 1].strip(_BLANK)
    window, candidates = _TAIL_WINDOW, 0
    while True:
        begin = max(start, len(data) - window)
        shown = data[begin:].decode("latin-1")  # One character per byte, so that positions agree.
        position = 0 if begin == start else _next_event(shown, 0)
        while position is not None:
            stop, closed = _walk(shown, position, from_start=begin == start and position == 0)
            candidates += closed
            if candidates > _MOST_CANDIDATES:
                return None
            if closed and _completes(data[begin + stop + 1 :], is_list=is_list):
                return begin + stop
            position = _next_event(shown, max(stop, position + 1))
        if begin == start or window >= _LARGEST_TAIL:
            return None
        window *= 8


def _next_event(shown: str, position: int) -> int | None:
    match = _CUT_TEXT.search(shown, position)
    return None if match is None else match.end() - 1


def _walk(shown: str, position: int, *, from_start: bool) -> tuple[int, bool]:
    """Step over events from ``position``; return the end position, and whether it is the closing bracket of the events.

    Another list of objects is not the events: an event has a phase, unless the walk began at the first event.
    """
    decode = json.JSONDecoder().raw_decode
    is_events = from_start
    position = _white(shown, position)
    if shown[position : position + 1] == "]":
        return position, is_events
    while True:
        try:
            event, behind = decode(shown, position)
        except (ValueError, RecursionError):
            return position, False
        if not isinstance(event, dict):
            return position, False
        is_events = is_events or isinstance(event.get("ph"), str)
        position = _white(shown, behind)
        mark = shown[position : position + 1]
        if mark == "]":
            return position, is_events
        if mark != ",":
            return position, False
        position = _white(shown, position + 1)


def _white(shown: str, position: int) -> int:
    match = _WHITE_TEXT.match(shown, position)
    return match.end() if match else position


def _completes(rest: bytes, *, is_list: bool) -> bool:
    rest = rest.strip(_BLANK)
    if is_list:
        return not rest
    if not rest.startswith((b",", b"}")):
        return False
    try:
        msgspec.json.decode(b'{"":0' + rest, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return False
    return True


def _head(before: bytes, after: bytes, path: str) -> Head:
    """Return the known keys before and after the events, without values of an unexpected type."""
    merged: dict[str, Any] = {}
    around = [before.rstrip(_BLANK).rstrip(b",") + b"}"]
    if before:
        around.append(b'{"":0' + after.strip(_BLANK))
    for text in around:
        if text.strip(_BLANK) == b"}":
            continue  # A bare list has nothing around it.
        try:
            merged.update(msgspec.json.decode(text, type=dict[str, msgspec.Raw]))
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: corrupt outside of the events: {str(error)[:120]}") from None
    head = Head()
    for field in msgspec.structs.fields(Head):
        raw = merged.get(field.encode_name)
        if raw is None and field.encode_name == "deviceProperties":
            raw = merged.get("computeProperties")
        if raw is None:
            continue
        try:
            setattr(head, field.name, msgspec.json.decode(raw, type=field.type, strict=False))
        except (ValueError, RecursionError):
            if field.name == "base_ns":
                raise DataError(f"{path}: baseTimeNanoseconds is not a number") from None
    if not 0 <= head.base_ns < LARGEST_BASE_NS:
        raise DataError(f"{path}: baseTimeNanoseconds is {head.base_ns}, which is not a time")
    return head
