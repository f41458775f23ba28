"""A stretch of the event array to a shard: chunks cut where the decoder agrees, odd ones mended."""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from perfscope.analyzers.readers.kineto_json.document import CUT, Buffer
from perfscope.analyzers.readers.kineto_json.events import EXACT, FAST, lenient
from perfscope.analyzers.readers.kineto_json.repair import mend
from perfscope.analyzers.readers.kineto_json.shard import Shard
from perfscope.profiler.errors import DataError

CHUNK = 2 << 20
"""Bytes decoded at once: large enough that msgspec's speed shows, small enough to bound memory."""

LARGEST_CHUNK = 64 << 20
"""No single event is larger; beyond it the file is refused rather than held in memory."""

_TRIES = 8
"""Cuts tried before a chunk is taken for corrupt. A cut inside a string is rare; eight in a row is damage."""

_BLANK = re.compile(rb"[\s,]*")


def decode_range(data: Buffer, start: int, end: int, path: str, progress: Callable[[int], None] | None = None) -> Shard:
    """Events in ``data[start:end]`` as a shard; the range begins and ends at event boundaries.

    ``DataError`` names the byte at which the events cannot be decoded.
    """
    shard = Shard()
    enabled = gc.isenabled()
    gc.disable()  # chunks are acyclic and die at once; the collector would walk them for nothing
    try:
        while True:
            blank = _BLANK.match(data, start, end)
            start = blank.end() if blank else start
            if start >= end:
                return shard
            start = _take(shard, data, start, end, path)
            if progress is not None:
                progress(start)
    finally:
        if enabled:
            gc.enable()


def _take(shard: Shard, data: Buffer, start: int, end: int, path: str) -> int:
    """Decode one chunk that begins at ``start``; the position behind it."""
    size = CHUNK
    while True:
        stops = _stops(data, start, min(start + size, end), end)
        error: Exception | None = None
        for stop in stops:
            text = b"".join((b"[", data[start:stop], b"]"))
            try:
                _decode(shard, text)
            except (msgspec.DecodeError, RecursionError, ValueError) as problem:
                error = error or problem
                continue
            return stop
        if stops:
            behind = _mended(shard, data, start, stops[0])
            if behind is not None:
                return behind
        if start + size >= end or size >= LARGEST_CHUNK:
            what = "an event larger than 64 MiB" if size >= LARGEST_CHUNK else str(error or "no event ends here")
            raise DataError(f"{path}: corrupt near byte {start:,}: {what[:120]}")
        size *= 8


def _stops(data: Buffer, start: int, soft_end: int, end: int) -> list[int]:
    """Ends to try for a chunk, the farthest first: just behind the ``}`` of a cut, or the range's end."""
    if soft_end >= end:
        return [end]
    window = 1 << 14
    while True:
        begin = max(start, soft_end - window)
        cuts = [begin + cut.start() + 1 for cut in CUT.finditer(data[begin:soft_end])]
        if cuts or begin == start:
            return cuts[: -_TRIES - 1 : -1]
        window *= 8


def _decode(shard: Shard, text: bytes) -> None:
    try:
        if shard.add(FAST.decode(text)):
            return
        events = EXACT.decode(text)
    except msgspec.ValidationError:
        _lenient(shard, json.loads(text, parse_float=str))
        return
    shard.add(events)


def _lenient(shard: Shard, events: list[Any]) -> None:
    placed = []
    for event in events:
        made = lenient(event)
        if isinstance(made, str):
            shard.unplaced[made] += 1
            shard.events += 1
        else:
            placed.append(made)
    shard.add(placed)


def _mended(shard: Shard, data: Buffer, start: int, stop: int) -> int | None:
    """Take the chunk after mending what profilers are known to write wrongly; None if it stays undecodable."""
    text, repairs = mend(data[start:stop])
    if not repairs:
        return None
    try:
        _decode(shard, b"".join((b"[", text, b"]")))
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    shard.repairs.update(repairs)
    return stop
