"""Events of a line of an XSpace, and the nesting of a host's spans, by the native library.

Their twins are ``analyzers/readers/xspace/events.py`` and ``spans.py``.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from perfscope.native import FaultError, library
from perfscope.native.arrays import Array, count, cut_texts, pointer

_TEXTS, _TEXT_BYTES, _METADATA, _REFERENCES, _OCCURRENCES, _DOUBLES, _STATS = range(7)
"""Numbers of sizes, as in ``src/lib.rs``."""

_MEMORY = 2

Sparse = tuple[Array, Array]
"""Some events of a line, ascending (int32), and a value for each (int64 or float64)."""


class _EventColumns(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("place", "start_ns", "end_ns", "offset_ps", "duration_ps")),
        ("count", ctypes.c_size_t),
        ("exact", ctypes.c_size_t),
    ]


class Frame(NamedTuple):
    """Where the events of a line are."""

    own: bytes
    """The fields of the line itself."""
    first: int
    """Offset of the first event from the line's first byte."""
    events: int


class NativeEvents(Struct, frozen=True, kw_only=True):
    """The events of a line."""

    ids: Array
    """Metadata ids that occur, int64."""
    place: Array
    """Index in ``ids`` of each event's metadata id; int32."""
    start_ns: Array
    end_ns: Array
    offset_ps: Array
    duration_ps: Array
    occurrences: Sparse
    doubles: Sparse
    """Last floating-point stat of each event that is not 0."""
    stats: list[Sparse]
    """The wanted stats. A text is its index in ``texts``, or -1 - the index of its name in ``references``."""
    texts: list[str]
    references: list[int]


def frame(data: bytes | memoryview | mmap.mmap, start: int, end: int) -> Frame | None:
    """Return the events' place in the line at bytes ``start`` to ``end``; ``None`` if its form is not the usual one."""
    native = _library()
    content, size = np.frombuffer(data, np.uint8), ctypes.c_size_t(end - start)
    extent = np.empty(3, np.int64)
    if native.perfscope_xspace_extent(pointer(content, start), size, pointer(extent)) != 0:
        return None
    events, first, after = extent.tolist()
    return Frame(bytes(data[start : start + first]) + bytes(data[start + after : end]), first, events)


def room(events: int, *, exact: bool) -> list[Array]:
    """Return columns for the events of lines, one after the other: place, start and end (ns), offset and duration (ps).

    They are those of ``NativeEvents``. ``exact``: with the last two.
    """
    sizes = (events, events, events if exact else 0, events if exact else 0)
    return [np.empty(events, np.int32), *(np.empty(size, np.int64) for size in sizes)]


def read_events(
    data: bytes | memoryview | mmap.mmap, start: int, end: int, frame: Frame, timestamp_ns: int,
    numbers: Sequence[int], texts: Sequence[int], columns: Sequence[Array],
) -> NativeEvents | None:  # fmt: skip
    """Return the events of the line at bytes ``start`` to ``end``; ``None`` if their form is not the usual one.

    ``numbers`` and ``texts``: metadata ids of the stats that are read as such, in the order of ``NativeEvents.stats``.
    ``columns``: part of a ``room``. ``MemoryError`` if memory runs out.
    """
    native = _library()
    sizes = (len(columns[0]), len(columns[-1]))
    ids = np.array([*numbers, *texts], np.int64)
    kinds = np.array([0] * len(numbers) + [1] * len(texts), np.uint8)
    content, status = np.frombuffer(data, np.uint8), ctypes.c_int64()
    address = native.perfscope_xspace_read(
        pointer(content, start), ctypes.c_size_t(end - start), ctypes.c_size_t(frame.first),
        ctypes.c_int64(timestamp_ns), ctypes.byref(_EventColumns(*map(pointer, columns), *sizes)),
        pointer(ids), pointer(kinds), count(ids), ctypes.byref(status),
    )  # fmt: skip
    del content  # So that the file can be closed.
    if status.value == _MEMORY:
        raise MemoryError
    if address is None:
        return None
    line = ctypes.c_void_p(address)
    try:
        return _taken(native, line, columns, len(ids))
    finally:
        native.perfscope_xspace_free(line)


def _library() -> ctypes.CDLL:
    native = library()
    if native is None:
        raise RuntimeError("the native library is not loaded")
    native.perfscope_xspace_extent.restype = native.perfscope_xspace_size.restype = ctypes.c_int64
    native.perfscope_xspace_take.restype = native.perfscope_nest.restype = ctypes.c_int64
    native.perfscope_xspace_read.restype = ctypes.c_void_p
    return native


def _taken(native: ctypes.CDLL, line: ctypes.c_void_p, columns: Sequence[Array], wanted: int) -> NativeEvents:
    def size(what: int) -> int:
        return int(native.perfscope_xspace_size(line, ctypes.c_size_t(what)))

    def take(what: int) -> Sparse:
        room = size(what)
        rows, values = np.empty(room, np.int32), np.empty(room, np.int64)
        native.perfscope_xspace_take(line, ctypes.c_size_t(what), pointer(rows), pointer(values), count(values))
        return rows, values

    place, start_ns, end_ns, offset_ps, duration_ps = columns
    texts = cut_texts(
        size(_TEXTS), size(_TEXT_BYTES), lambda joined, ends: native.perfscope_xspace_texts(line, joined, ends)
    )
    rows, doubles = take(_DOUBLES)
    return NativeEvents(
        ids=take(_METADATA)[1],
        place=place,
        start_ns=start_ns,
        end_ns=end_ns,
        offset_ps=offset_ps,
        duration_ps=duration_ps,
        occurrences=take(_OCCURRENCES),
        doubles=(rows, doubles.view(np.float64)),
        stats=[take(_STATS + stat) for stat in range(wanted)],
        texts=[text.decode() for text in texts],
        references=take(_REFERENCES)[1].tolist(),
    )


class Spans(NamedTuple):
    """Events of a line that may be rows of a table of spans; shapes (n,)."""

    thread: int
    start_ns: Array
    end_ns: Array
    kind: Array
    """``SliceKind``, or a value of ``analyzers/readers/xspace/spans.py``; uint8."""
    place: Array
    """Place of the name in ``names`` and ``jitted``; int32."""
    names: Array
    """Code of the text of each name; int32, shape (k,)."""
    jitted: Array
    """Flag of the call of a jitted function; bool, shape (k,)."""
    wanted: bool
    """Whether rows of events are wanted."""


class _SpanPart(ctypes.Structure):
    _fields_ = [
        ("thread", ctypes.c_int64),
        ("count", ctypes.c_size_t),
        ("first", ctypes.c_int64),
        ("names", ctypes.c_void_p),
        ("jitted", ctypes.c_void_p),
        ("name_count", ctypes.c_size_t),
    ]


class _SpanColumns(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("start", "end", "kind", "name", "thread", "parent", "rows")),
        ("count", ctypes.c_size_t),
    ]


def nest(parts: Sequence[Spans], firsts: Sequence[int]) -> tuple[dict[str, Array], Array]:
    """Return the table of spans, and the row of each event of parts that want it.

    ``parts`` are by thread; ``firsts``: number of each part's first event in the rows. Parts of one ``room`` are
    overwritten. ``MemoryError`` if memory runs out, ``FaultError`` if the library fails.
    """
    native = _library()
    start, end, kind, name = (
        _joined([getattr(part, column) for part in parts]) for column in ("start_ns", "end_ns", "kind", "place")
    )
    thread, parent, rows = (np.empty(len(start), np.int32) for _ in range(3))
    given = (_SpanPart * len(parts))(
        *(
            _SpanPart(
                part.thread, len(part.kind), first if part.wanted else -1,
                pointer(part.names), pointer(part.jitted), len(part.names),
            )
            for part, first in zip(parts, firsts, strict=True)
        )
    )  # fmt: skip
    columns = _SpanColumns(*map(pointer, (start, end, kind, name, thread, parent, rows)), len(start))
    made = native.perfscope_nest(given, ctypes.c_size_t(len(parts)), ctypes.byref(columns))
    if made == -_MEMORY:
        raise MemoryError
    if made < 0:
        raise FaultError
    table = {"start_ns": start, "end_ns": end, "name": name, "thread": thread, "parent": parent, "kind": kind}
    return {name: column[:made] for name, column in table.items()}, rows


def _joined(pieces: Sequence[Array]) -> Array:
    """Return the values of all pieces; without a copy if each follows the one before in one array."""
    whole = pieces[0].base
    if isinstance(whole, np.ndarray) and all(piece.base is whole for piece in pieces):
        at = [piece.ctypes.data for piece in pieces]
        ends = [begin + piece.nbytes for begin, piece in zip(at, pieces, strict=True)]
        if at[1:] == ends[:-1]:
            low = (at[0] - whole.ctypes.data) // whole.itemsize
            return whole[low : low + sum(map(len, pieces))]
    return np.concatenate(pieces)
