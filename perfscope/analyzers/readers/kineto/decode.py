"""Decoding of a part of the event array to a shard: chunks end where the decoder agrees, known faults are repaired."""

from __future__ import annotations

import gc
import json
import mmap
import multiprocessing
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import numpy as np

from perfscope.analyzers.readers.kineto.document import CUT, Buffer
from perfscope.analyzers.readers.kineto.events import EXACT, EXACT_ONE, FAST, RAW, lenient
from perfscope.analyzers.readers.kineto.shard import Shard
from perfscope.model.errors import DataError
from perfscope.model.trace.columns import Array
from perfscope.native import library as native_library

QUOTES = "unescaped quotes in a name"
NUMBERS = "nan or inf where JSON has none"
CONTROLS = "control characters in a string"

_LINE = re.compile(
    rb'^(\s*"(?:name|cat|Call stack|Input type|kernel|Trace name)"\s*:\s*")(.*)("\s*,?\s*)$', re.MULTILINE
)
_INLINE = re.compile(
    rb'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|id|args|s|bp|sf|cname)"\s*:|\}))', re.DOTALL
)
_NUMBER = re.compile(rb"(:\s*)-?(?:nan|NaN|inf|Infinity)(\s*[,}\]])")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")

CHUNK = 2 << 20
"""Bytes decoded at once: large enough for msgspec's speed, small enough to bound memory."""

LARGEST_CHUNK = 64 << 20
"""Maximum size of an event; a larger one is refused rather than held in memory."""

_TRIES = 8
"""Number of cuts tried before a chunk counts as corrupt. A cut inside a string is rare; eight in a row are damage."""

_AT_BYTE = re.compile(r"\(byte (\d{1,18})\)$")
"""End of msgspec's errors."""

_BLANK = re.compile(rb"[\s,]*")

SHARE = 24 << 20
"""Bytes of events that justify starting a process (about 0.1 s of decoding)."""

MOST = 8
"""Maximum number of processes; beyond it, memory bandwidth and the merge dominate."""

MOST_THREADS = 2
"""Maximum number of threads of the native scan; the scan takes less than what follows it."""

_SEARCH = 4 << 20
"""Bytes after a planned boundary in which the next end of an event is searched."""

_ALIGN = 64


# Repairs of known faults of profilers; each repair is counted by kind.
# - torch 2.13 does not escape ``"`` in names (record_function text, dynamo file names).
# - Kineto wrote ``nan`` and ``inf`` for bandwidth and occupancy.
# - Some kernel names contain control characters without escapes.


def mend(text: bytes) -> tuple[bytes, Counter[str]]:
    """Return ``text`` with the known faults repaired, and their number by kind."""
    repairs: Counter[str] = Counter()
    text, controls = _CONTROL.subn(b" ", text)
    text, numbers = _NUMBER.subn(rb"\1null\2", text)
    repairs[CONTROLS], repairs[NUMBERS] = controls, numbers
    pretty = text.count(b"\n") > 3 * text.count(b'"name"')  # One key per line, not one event per line.

    def escape(match: re.Match[bytes]) -> bytes:
        before, inner, after = match.groups()
        mended = _escaped(inner)
        repairs[QUOTES] += mended != inner
        return before + mended + after

    text = (_LINE if pretty else _INLINE).sub(escape, text)
    return text, +repairs


def _escaped(inner: bytes) -> bytes:
    """Escape quotes without an escape, and a backslash that would escape the closing quote."""
    if b'"' not in inner and not inner.endswith(b"\\"):
        return inner
    parts = re.split(rb"(\\.)", inner, flags=re.DOTALL)  # Escapes are at odd positions and stay.
    mended = b"".join(part if index % 2 else part.replace(b'"', b'\\"') for index, part in enumerate(parts))
    trailing = len(mended) - len(mended.rstrip(b"\\"))
    return mended + b"\\" if trailing % 2 else mended


def decode_range(data: Buffer, start: int, end: int, path: str, progress: Callable[[int], None] | None = None) -> Shard:
    """Return the events in ``data[start:end]`` as a shard; the range begins and ends at event boundaries.

    ``DataError`` with the byte at which the events cannot be decoded.
    """
    shard = Shard()
    enabled = gc.isenabled()
    gc.disable()  # Chunks are acyclic and freed at once, so the collector would only waste time.
    try:
        while True:
            blank = _BLANK.match(data, start, end)
            start = blank.end() if blank else start
            if start >= end:
                return shard
            start = take_chunk(shard, data, start, end, path)
            if progress is not None:
                progress(start)
    finally:
        if enabled:
            gc.enable()


def take_chunk(shard: Shard, data: Buffer, start: int, end: int, path: str) -> int:
    """Decode one chunk that begins at ``start``; return the position after it. ``DataError`` as in ``decode_range``."""
    size = CHUNK
    while True:
        stops = _stops(data, start, min(start + size, end), end)
        error: Exception | None = None
        for stop in stops:
            text = b"".join((b"[", data[start:stop], b"]"))
            try:
                decode_chunk(shard, text)
            except (msgspec.DecodeError, RecursionError, ValueError) as problem:
                error = error or problem
                continue
            return stop
        if stops:
            behind = _mended(shard, data, start, stops[0])
            if behind is not None:
                return behind
        if start + size >= end or size >= LARGEST_CHUNK:
            at, what = _place(error, start)
            what = "an event larger than 64 MiB" if size >= LARGEST_CHUNK else what
            raise DataError(f"{path}: corrupt near byte {at:,}: {what[:120]}")
        size *= 8


def _place(error: Exception | None, start: int) -> tuple[int, str]:
    """Return (byte of the file, the fault there) of an error in ``[`` and the text from ``start``."""
    if isinstance(error, json.JSONDecodeError):
        return start + len(error.doc[: error.pos].encode("utf-8", "replace")) - 1, error.msg
    if error is None:
        return start, "no event ends here"
    place = _AT_BYTE.search(str(error))
    return (start, str(error)) if place is None else (start + int(place[1]) - 1, str(error)[: place.start()].rstrip())


def _stops(data: Buffer, start: int, soft_end: int, end: int) -> list[int]:
    """Return candidate ends of a chunk, the farthest first: after the ``}`` of a cut, or the end of the range."""
    if soft_end >= end:
        return [end]
    window = 1 << 14
    while True:
        begin = max(start, soft_end - window)
        cuts = [begin + cut.start() + 1 for cut in CUT.finditer(data[begin:soft_end])]
        if cuts or begin == start:
            return cuts[: -_TRIES - 1 : -1]
        window *= 8


def decode_chunk(shard: Shard, text: bytes, places: Array | None = None) -> None:
    """Add the events of ``text``, a JSON list, to ``shard``; ``places`` as in ``Shard.add``.

    ``DecodeError`` of msgspec, ``RecursionError`` or ``ValueError`` without adding any event if it is not JSON.
    """
    try:
        if not shard.add(FAST.decode(text), places):
            shard.add(EXACT.decode(text), places)
    except msgspec.ValidationError:
        _one_by_one(shard, RAW.decode(text), places)
    if shard.ranges:
        shard.add_counters(text)


def _one_by_one(shard: Shard, events: list[msgspec.Raw], places: Array | None) -> None:
    """Add events of which some have unusual types, so that those do not change how the others are read."""
    placed: list[Any] = []
    rows: list[int] = []
    unplaced: Counter[str] = Counter()
    for row, text in enumerate(events):
        try:
            made: Any = EXACT_ONE.decode(text)
        except msgspec.ValidationError:
            made = None
        if made is None or bytes(getattr(made, "ts", b"")).startswith(b'"'):  # A time in quotes.
            made = lenient(bytes(text))
        if isinstance(made, str):
            unplaced[made] += 1
        else:
            placed.append(made)
            rows.append(row)
    chosen = np.array(rows, np.int64)
    shard.add(placed, chosen + shard.events if places is None else places[chosen])
    shard.unplaced.update(unplaced)
    shard.events += len(events) - len(placed)


def _mended(shard: Shard, data: Buffer, start: int, stop: int) -> int | None:
    """Decode the chunk after repairing known faults; ``None`` if it stays undecodable."""
    text, repairs = mend(data[start:stop])
    if not repairs:
        return None
    try:
        decode_chunk(shard, b"".join((b"[", text, b"]")))
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    shard.repairs.update(repairs)
    return stop


# Decoding in several processes: the parent takes the first part, children the rest.
#
# A child writes its columns into anonymous shared memory, so only names and offsets are pickled. If a child fails, the
# parent decodes its part.


def decode_all(
    data: Buffer, start: int, end: int, path: str, progress: Callable[[float], None] | None = None
) -> list[Shard]:
    """Return all events of ``data[start:end]`` as shards in file order. ``DataError`` as in ``decode_range``."""
    is_native = native_library() is not None
    ranges = _ranges(data, start, end, threads(end - start) if is_native else processes(end - start))
    first, *others = ranges

    def report(position: int) -> None:
        if progress is not None:
            progress((position - first[0]) / max(first[1] - first[0], 1))

    if is_native:
        from perfscope.analyzers.readers.kineto.native_decode import decode_ranges

        try:
            return decode_ranges(data, ranges, path, report)
        except DataError:
            if not others:
                raise
            return decode_ranges(data, [(start, end)], path)  # A cut may be inside a string.
    helpers = [_Helper(data, low, high, path) for low, high in others]

    try:
        shards = [decode_range(data, *first, path, report)]
    except DataError:
        for helper in helpers:
            helper.stop()
        if not helpers:
            raise
        return [decode_range(data, start, end, path)]  # A cut may be inside a string.
    return shards + [helper.shard() or decode_range(data, helper.low, helper.high, path) for helper in helpers]


def threads(size: int) -> int:
    """Return the number of threads of the native scan for ``size`` bytes: one in a process that is one of several."""
    if multiprocessing.current_process().daemon:
        return 1
    return max(1, min(_cores(), MOST_THREADS, size // SHARE))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes(size: int) -> int:
    """Return the number of processes for ``size`` bytes; 1 if there are other threads, because forking is unsafe."""
    alone = threading.active_count() == 1 and not multiprocessing.current_process().daemon
    if not hasattr(os, "fork") or not alone or "jax" in sys.modules:  # The threads of jax must not be forked.
        return 1
    return max(1, min(_cores(), MOST, size // SHARE))


def _ranges(data: Buffer, start: int, end: int, parts: int) -> list[tuple[int, int]]:
    """Return byte ranges of similar size, each from the ``{`` of an event to just after the ``}`` of an event."""
    ranges = []
    for part in range(1, parts):
        wanted = max(start, end * part // parts)
        cut = CUT.search(data, wanted, min(wanted + _SEARCH, end))
        if cut is not None:
            ranges.append((start, cut.start() + 1))
            start = cut.end() - 1
    return [*ranges, (start, end)]


class _Helper:
    """A child process that decodes one range into shared memory."""

    def __init__(self, data: Buffer, low: int, high: int, path: str) -> None:
        self.low, self.high = low, high
        # Columns are smaller than their JSON (a 150-byte event makes a 61-byte row).
        self._memory = mmap.mmap(-1, high - low + (1 << 20))
        context = multiprocessing.get_context("fork")
        self._inbox, outbox = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_serve, args=(outbox, self._memory, data, low, high, path), daemon=True, name="perfscope-reader"
        )
        self._process.start()
        outbox.close()

    def shard(self) -> Shard | None:
        """Return the child's shard; ``None`` if it could not decode its range or died."""
        try:
            sent = self._inbox.recv()
        except EOFError:
            sent = None
        self._process.join()
        return None if sent is None else _unpack(sent, self._memory)

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()


def _serve(outbox: Connection, memory: mmap.mmap, data: Buffer, low: int, high: int, path: str) -> None:
    try:
        shard = decode_range(data, low, high, path)
        sent: Any = _pack(shard, memory)
    except (DataError, MemoryError, ValueError):
        sent = None  # The parent repeats the range and reports the fault.
    outbox.send(sent)
    outbox.close()


def _pack(shard: Shard, memory: mmap.mmap) -> dict[str, Any]:
    """Concatenate the shard's parts into ``memory``; return the layout to find them again."""
    offset = 0
    layout: dict[str, dict[str, tuple[str, int, int]]] = {}
    for table, grown in shard.tables.items():
        layout[table] = {}
        for name, values in grown.take().items():
            if offset + values.nbytes > len(memory):
                raise ValueError("shared memory is too small")
            target = np.frombuffer(memory, values.dtype, len(values), offset)
            target[:] = values
            layout[table][name] = (values.dtype.str, len(values), offset)
            offset += -(-values.nbytes // _ALIGN) * _ALIGN
    return {
        "layout": layout,
        "strings": list(shard.strings),
        "threads": list(shard.threads),
        "events": shard.events,
        "unplaced": shard.unplaced,
        "repairs": shard.repairs,
    }


def _unpack(sent: dict[str, Any], memory: mmap.mmap) -> Shard:
    shard = Shard()
    shard.strings.update((text, code) for code, text in enumerate(sent["strings"]))
    shard.threads.update((thread, code) for code, thread in enumerate(sent["threads"]))
    shard.events, shard.unplaced, shard.repairs = sent["events"], sent["unplaced"], sent["repairs"]
    for table, columns in sent["layout"].items():
        shard.received[table] = {
            name: np.frombuffer(memory, np.dtype(dtype), size, offset)
            for name, (dtype, size, offset) in columns.items()
        }
    return shard
