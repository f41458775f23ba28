"""Decoding by the native library: usual events become columns there, all others are decoded as without it.

Both ways give the same tables but for the order of the texts in a shard's dictionary.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from perfscope.analyzers.readers.kineto.categories import CATEGORIES, DEVICE_MARKS, NUMBERS, Group
from perfscope.analyzers.readers.kineto.counter_ranges import CATEGORY
from perfscope.analyzers.readers.kineto.decode import decode_chunk, decode_range, take_chunk
from perfscope.analyzers.readers.kineto.document import Buffer
from perfscope.analyzers.readers.kineto.shard import Shard
from perfscope.model.trace.columns import MISSING, Array
from perfscope.native import FaultError
from perfscope.native import kineto as native

STEP = 32 << 20
"""Bytes that are scanned between two reports of progress."""

_REST_AT_ONCE = 4096
"""Events of the rest that are decoded at once."""

_GROUPS = {
    Group.SLICE: native.SLICE,
    Group.CALL: native.CALL,
    Group.KERNEL: native.KERNEL,
    Group.COPY: native.COPY,
    Group.SYNC: native.SYNC,
    Group.MTIA: native.REST,
    Group.MIRROR: native.DROPPED,
}


def _group(category: str) -> int:
    if category == "python_function":
        return native.PYTHON
    if category in DEVICE_MARKS:
        return native.MARK
    return native.REST if category == CATEGORY else _GROUPS[CATEGORIES[category]]


_CATEGORY_GROUPS = {f'"{category}"': _group(category) for category in CATEGORIES}


def decode_ranges(
    data: Buffer, ranges: list[tuple[int, int]], path: str, progress: Callable[[int], None] | None = None
) -> list[Shard]:
    """Return the events of each range of ``data`` as a shard, one thread per range.

    ``DataError`` as in ``decode.decode_range``. ``progress`` is called with the position in the first range.
    """
    if len(ranges) == 1:
        return [_decode_range(data, *ranges[0], path, progress)]
    with ThreadPoolExecutor(len(ranges)) as threads:
        reports = [progress, *([None] * (len(ranges) - 1))]
        waiting = [
            threads.submit(_decode_range, data, *part, path, report)
            for part, report in zip(ranges, reports, strict=True)
        ]
        return [shard.result() for shard in waiting]


def _decode_range(data: Buffer, start: int, end: int, path: str, progress: Callable[[int], None] | None) -> Shard:
    shard = Shard()
    with native.Scan(data, _CATEGORY_GROUPS) as scan:
        position = given_back = start
        rest = 0
        try:
            while position < end:
                position, is_bad = scan.read(position, min(position + STEP, end), end)
                if is_bad:
                    rest = _decode_rest(shard, data, scan.rest(), rest)  # So that Python reads in the file's order.
                    shard.events = scan.events  # The number from which the chunk's events are counted.
                    position = take_chunk(shard, data, position, end, path)
                    scan.skip(shard.events - scan.events)
                if isinstance(data, mmap.mmap):
                    given_back = _give_back(data, given_back, position)
                if progress is not None:
                    progress(position)
            _decode_rest(shard, data, scan.rest(), rest)
            _receive(shard, scan)
        except (msgspec.DecodeError, RecursionError, ValueError, FaultError):
            return decode_range(data, start, end, path, progress)  # Which repairs known faults.
        shard.events = scan.events
    return shard


def _give_back(data: mmap.mmap, start: int, end: int) -> int:
    """Release the pages of a mapped file between two positions; return the position up to which they are released."""
    low, high = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if high > low and hasattr(data, "madvise"):
        data.madvise(mmap.MADV_DONTNEED, low, high - low)
    return high


def _receive(shard: Shard, scan: native.Scan) -> None:
    """Move the columns of a scan to a shard, with codes of the shard's dictionaries."""
    tables = {table: scan.take(table) for table in native.TABLES}
    texts = scan.texts(native.STRINGS)
    names = _used(len(texts), [tables[table]["name"] for table in tables if "name" in tables[table]])
    raw = _used(len(texts), [tables["slices"][name] for name in ("shapes", "dtypes", "strides") if tables["slices"]])
    values = _used(len(texts), [tables["slices"]["values"]] if tables["slices"] else [])
    written = scan.texts(native.CATEGORIES)
    categories = _used(len(written), [tables["slices"]["category"]] if tables["slices"] else [])
    decode = msgspec.json.decode
    for code in np.flatnonzero(names >= 0).tolist():
        names[code] = shard.strings[decode(texts[code])]
    for code in np.flatnonzero(raw >= 0).tolist():
        raw[code] = shard.strings[texts[code].decode("utf-8", "replace")]
    for code in np.flatnonzero(values >= 0).tolist():
        kept = NUMBERS.fullmatch(texts[code])
        values[code] = shard.strings[texts[code].decode("utf-8", "replace")] if kept else MISSING
    for code in np.flatnonzero(categories >= 0).tolist():
        categories[code] = shard.strings[decode(written[code]).lower()]
    threads = [shard.threads[tuple(decode(b"[" + text + b"]"))] for text in scan.texts(native.THREADS)]
    codes = {
        "name": names,
        "shapes": raw,
        "dtypes": raw,
        "strides": raw,
        "values": values,
        "category": categories,
        "thread": np.array([*threads, MISSING], np.int32),
    }
    for table, columns in tables.items():
        for name in columns.keys() & codes.keys():
            columns[name] = codes[name][columns[name]]
        if columns:
            shard.received[table] = _memory(columns) if table == "memory" else columns


def _memory(columns: dict[str, Array]) -> dict[str, Array]:
    """Return the columns of memory events by the names that the reader gives them."""
    return {
        "place": columns["place"],
        "time_ns": columns["start_ns"],
        "on_device": columns["device_type"] != 0,
        "ordinal": columns["device"],
        "address": columns["address"].view(np.uint64),
        "bytes": columns["bytes"],
        "allocated_bytes": columns["allocated_bytes"],
        "reserved_bytes": columns["reserved_bytes"],
        "thread": columns["thread"],
    }


def _used(size: int, columns: list[Array]) -> Array:
    """Return an array by code, 0 where one of the columns has the code and ``MISSING`` elsewhere; one more at the end.

    The last element translates ``MISSING`` to itself.
    """
    result = np.full(size + 1, MISSING, np.int32)
    for column in columns:
        result[column] = 0
    result[-1] = MISSING
    return result


def _decode_rest(shard: Shard, data: Buffer, rest: Array, done: int) -> int:
    """Decode the events of the rest after the first ``done``; return the number of all."""
    for first in range(done, len(rest), _REST_AT_ONCE):
        part = rest[first : first + _REST_AT_ONCE]
        texts = [data[start:end] for start, end, _ in part.tolist()]
        decode_chunk(shard, b"".join((b"[", b",".join(texts), b"]")), part[:, 2])
    return len(rest)
