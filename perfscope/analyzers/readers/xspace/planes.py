"""One plane decoded: names, its own stats, and its lines as columns, one line at a time.

A line is read from its bytes (``events.py``), or by protobuf if it holds anything unusual, converted to columns and
dropped before the next one, so memory is bounded by the longest line. An event begins ``offset_ps`` after its line's
``timestamp_ns``. Offsets of starts and ends are rounded to whole ns separately, half to even. Rounding keeps the order,
so events that nest or touch in the file do so in the columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
from msgspec import Struct

from perfscope.analyzers.hlo import decode
from perfscope.analyzers.readers.xspace.events import Columns, UnusualError, Wanted, read_events, split
from perfscope.analyzers.readers.xspace.names import ACCELERATOR
from perfscope.model.errors import DataError
from perfscope.model.intervals import numbered
from perfscope.model.trace.columns import MISSING, Array
from perfscope.model.wire import Data, Field, WireError, fields, packed
from perfscope.native import library as native_library
from perfscope.native.xspace import NativeEvents

_PLANES, _ERRORS, _WARNINGS, _HOSTNAMES = 1, 2, 3, 4

_LINES = 3

_LARGEST = 1 << 61
"""Upper bound of ns since 1970 and of ps in a recording (26 days); larger values would overflow sums."""

MAX_LINE_BYTES = 512 << 20
"""Maximum bytes of a line: a thread with ten million events. A malicious line decodes to up to 30 times its bytes."""

MAX_METADATA = 4_000_000
"""Maximum number of names of events and stats of a plane; the longest programs have some 10^5 instructions."""

_SIGN = 1 << 63

NUMBERS = (
    "_p", "_c", "program_id", "run_id", "device_ordinal", "correlation_id", "step_num", "num_threads", "addr",
    "allocation_bytes", "requested_bytes", "bytes_allocated", "bytes_available", "bytes_reserved",
    "peak_bytes_in_use", "index_on_host",
    "cuda_graph_id", "cuda_graph_exec_id", "global_device_id",
    "num_addressable_devices",
)  # fmt: skip
"""Stats of events that are read as 64-bit numbers (an unsigned one as its two's complement)."""

TEXTS = ("hlo_op", "hlo_module", "name", "kernel_details", "memcpy_details", "memset_details", "allocator_name")
"""Stats of events that are read as text. Stats in neither list are not read."""


# The outer frame of an XSpace: positions of its planes and their lines, without decoding their content.
#
# No allocation depends on a size in the file: a length that reaches beyond the data is refused before anything is read.
# So a truncated message of the outer levels is always detected.


class Space(Struct, frozen=True, kw_only=True):
    """Positions of the planes of an XSpace, as (start, end) offsets."""

    planes: tuple[tuple[int, int], ...]
    ends_with_host: bool
    """Whether the names of the hosts come after the planes: a profiler writes them last, so nothing is truncated."""
    errors: int
    """Number of errors that the profiler reported while it made the planes."""


def space(data: Data, shown: str) -> Space:
    """Return the planes of a file. ``DataError`` if it is not an XSpace, truncated or corrupt."""
    planes: list[tuple[int, int]] = []
    hosts, errors = False, 0
    for part in parts(data, 0, len(data), shown):
        if part.number == _PLANES:
            planes.append((part.start, part.end))
            hosts = False
        elif part.number == _HOSTNAMES:
            hosts = True
        elif part.number == _ERRORS:
            errors += 1
        elif part.number != _WARNINGS:
            raise DataError(f"{shown}: cut off or corrupt: not an XSpace (unknown field at byte {part.begin:,})")
    return Space(planes=tuple(planes), ends_with_host=hosts, errors=errors)


def parts(data: Data, start: int, end: int, shown: str) -> Iterator[Field]:
    """Yield the fields of the message at ``[start, end)`` in order; ``DataError`` if one reaches beyond it."""
    try:
        yield from fields(data, start, end)
    except WireError as error:
        raise DataError(f"{shown}: cut off or corrupt: {error}") from error


def numbers(data: Data, part: Field, shown: str) -> Iterator[int]:
    """Yield the numbers of one field of a repeated number, which may be packed."""
    try:
        yield from packed(data, part.start, part.end)
    except WireError as error:
        raise DataError(f"{shown}: cut off or corrupt: {error}") from error


class Plane(Struct, frozen=True, kw_only=True):
    """A plane without its lines."""

    name: str
    stats: Mapping[str, int | float | str]
    """Numbers and texts among the plane's own stats."""
    names: Mapping[int, str]
    """Name of an event by metadata id."""
    metadata_stats: Mapping[int, Mapping[str, int | float | str | bytes]]
    """Stats that all events of a metadata id share."""
    stat_names: Mapping[int, str]
    lines: tuple[tuple[int, int], ...]
    """Positions of its lines in the data."""


Sparse = tuple[Array, Array]
"""Some events of a line, ascending, and a value for each."""


class Line(Struct, frozen=True, kw_only=True):
    """A line as columns, in the order of the file."""

    id: int
    name: str
    ids: Array
    """Metadata ids that occur, int64."""
    place: Array
    """Index in ``ids`` of each event's metadata id, int32."""
    offset_ps: Array
    """Offset from the line's own start; empty unless the line is an accelerator's."""
    duration_ps: Array
    start_ns: Array
    end_ns: Array
    stats: Mapping[str, Sparse]
    """The stats of ``NUMBERS`` and ``TEXTS`` (codes) that occur."""
    doubles: Sparse
    """Last floating-point stat of each event that has one: the value of a counter event."""
    aggregated: Array
    """Events that are sums over several and have no time."""

    def __len__(self) -> int:
        """Number of events."""
        return len(self.place)

    def with_stat(self, name: str) -> Array:
        """Return the events that have a stat."""
        return self.stats[name][0] if name in self.stats else _NO_EVENTS

    def number(self, name: str) -> Array:
        """Return a stat's column; ``MISSING`` for an event without it."""
        column = np.full(len(self), MISSING, np.int64)
        if name in self.stats:
            rows, values = self.stats[name]
            column[rows] = values
        return column

    def number_of(self, name: str, events: Array) -> Array:
        """Return a stat of ``events``; ``MISSING`` for an event without it."""
        if name not in self.stats:
            return np.full(len(events), MISSING, np.int64)
        rows, values = self.stats[name]
        return values if np.array_equal(rows, events) else self.number(name)[events]

    def values(self) -> Array:
        """Return ``doubles`` as a column; NaN for an event without one."""
        column = np.full(len(self), np.nan)
        column[self.doubles[0]] = self.doubles[1]
        return column

    def by_id(self, answers: Array) -> Array:
        """Return the answer for each event's metadata id. ``answers``: one per ``ids``."""
        return answers.take(self.place, mode="clip") if len(answers) else np.empty(0, answers.dtype)


_NO_EVENTS = np.empty(0, np.int32)


def read_plane(data: Data, start: int, end: int, shown: str) -> Plane:
    """Return the plane at ``[start, end)``. ``DataError`` if it is corrupt."""
    kept: list[bytes] = []
    lines: list[tuple[int, int]] = []
    for part in parts(data, start, end, shown):
        if part.number == _LINES:
            lines.append((part.start, part.end))
        else:
            kept.append(bytes(data[part.begin : part.end]))
        if len(kept) > MAX_METADATA:
            raise DataError(f"{shown}: a plane of more than {MAX_METADATA:,} names: refused")
    plane = decode("xspace.XPlane", b"".join(kept), shown)
    del kept
    stat_names = {entry.key: entry.value.name for entry in plane.stat_metadata}
    return Plane(
        name=plane.name,
        stats={name: value for name, value in _stats(plane.stats, stat_names).items() if not isinstance(value, bytes)},
        names={entry.key: entry.value.name for entry in plane.event_metadata},
        metadata_stats={
            entry.key: _stats(entry.value.stats, stat_names) for entry in plane.event_metadata if entry.value.stats
        },
        stat_names=stat_names,
        lines=tuple(lines),
    )


def _stats(stats: Any, names: Mapping[int, str]) -> dict[str, int | float | str | bytes]:
    result: dict[str, int | float | str | bytes] = {}
    for stat in stats:
        text = names.get(stat.ref_value, "") if stat.ref_value else stat.str_value
        number = stat.int64_value or stat.uint64_value or stat.double_value
        result[names.get(stat.metadata_id, "")] = text or stat.bytes_value or number
    return result


def read_lines(data: Data, plane: Plane, code: Any, shown: str) -> Iterator[Line]:
    """Yield the plane's lines as columns. ``code``: text -> its code in the string pool."""
    for start, end in plane.lines:
        if end - start > MAX_LINE_BYTES:
            raise DataError(f"{shown}: a line of {end - start:,} bytes: refused")
    wanted = _wanted(plane.stat_names, code)
    names = [*wanted.numbers.values(), *wanted.texts.values()]
    if native_library() is not None and len(set(names)) == len(names):  # Not with two ids of one name.
        yield from _native_lines(data, plane, wanted, shown)
    else:
        for start, end in plane.lines:
            yield _plain_line(data, start, end, plane, wanted, shown)


def _native_lines(data: Data, plane: Plane, wanted: Wanted, shown: str) -> Iterator[Line]:
    from perfscope.native import xspace as native

    frames = [native.frame(data, start, end) for start, end in plane.lines]
    room = native.room(
        sum(frame.events for frame in frames if frame is not None), exact=ACCELERATOR.match(plane.name) is not None
    )
    at = 0
    for (start, end), frame in zip(plane.lines, frames, strict=True):
        line = None
        if frame is not None:
            own = decode("xspace.XLine", frame.own, shown)
            part = [column[at : at + frame.events] for column in room]
            events = native.read_events(
                data, start, end, frame, own.timestamp_ns, list(wanted.numbers), list(wanted.texts), part
            )
            at += frame.events
            line = None if events is None else _of_native(own, events, wanted)
        yield line or _plain_line(data, start, end, plane, wanted, shown)


def _of_native(own: Any, events: NativeEvents, wanted: Wanted) -> Line:
    referred = [wanted.refers(number) for number in reversed(events.references)]
    codes = np.array([*map(wanted.code, events.texts), *referred], np.int64)  # -1 is the first reference.
    stats = {}
    for place, (name, (rows, values)) in enumerate(
        zip((*wanted.numbers.values(), *wanted.texts.values()), events.stats, strict=True)
    ):
        if len(rows):
            stats[name] = rows, values if place < len(wanted.numbers) else codes[values]
    return Line(
        id=own.id,
        name=own.display_name or own.name,
        ids=events.ids,
        place=events.place,
        offset_ps=events.offset_ps,
        duration_ps=events.duration_ps,
        start_ns=events.start_ns,
        end_ns=events.end_ns,
        stats=stats,
        doubles=events.doubles,
        aggregated=events.occurrences[0],
    )


def _plain_line(data: Data, start: int, end: int, plane: Plane, wanted: Wanted, shown: str) -> Line:
    """Return a line. ``DataError`` for impossible times."""
    try:
        own, begins = split(data, start, end)
        columns = read_events(data, start, begins, wanted)
    except UnusualError:
        line = decode("xspace.XLine", data[start:end], shown)
        columns = _by_protobuf(line.events, plane, wanted.code)
    else:
        line = decode("xspace.XLine", own, shown)
    offset, duration = columns.offset_ps, columns.duration_ps
    if len(offset) and (
        not -_LARGEST < line.timestamp_ns < _LARGEST
        or int(np.abs(offset).max()) >= _LARGEST
        or int(offset.min()) == -_SIGN
        or int(duration.min()) < 0
        or int(duration.max()) >= _LARGEST
    ):
        raise DataError(f"{shown}: corrupt: line {line.name!r} has impossible times")
    return line_of(line.id, line.display_name or line.name, line.timestamp_ns, columns)


def line_of(number: int, name: str, timestamp_ns: int, columns: Columns) -> Line:
    """Return the line that begins at ``timestamp_ns``, from columns of all its events."""
    ids, place = numbered(columns.metadata)
    offset, duration = columns.offset_ps, columns.duration_ps
    given = {name: (np.flatnonzero(column != MISSING), column) for name, column in columns.stats.items()}
    doubles = np.flatnonzero(~np.isnan(columns.values))
    return Line(
        id=number,
        name=name,
        ids=ids,
        place=place.astype(np.int32),
        offset_ps=offset,
        duration_ps=duration,
        start_ns=timestamp_ns + whole_ns(offset),
        end_ns=timestamp_ns + whole_ns(offset + duration),
        stats={name: (rows, column[rows]) for name, (rows, column) in given.items() if len(rows)},
        doubles=(doubles, columns.values[doubles]),
        aggregated=np.flatnonzero(columns.occurrences),
    )


def _wanted(names: Mapping[int, str], code: Callable[[str], int]) -> Wanted:
    return Wanted(
        numbers={key: name for key, name in names.items() if name in NUMBERS},
        texts={key: name for key, name in names.items() if name in TEXTS},
        refers=lambda number: code(names.get(number, "") if number else ""),
        code=code,
        number=lambda text: signed(_written(text)),
    )


def _by_protobuf(events: Any, plane: Plane, code: Callable[[str], int]) -> Columns:
    metadata, offset, duration, occurrences = (
        np.fromiter(map(attrgetter(field), events), np.int64, len(events))
        for field in ("metadata_id", "offset_ps", "duration_ps", "num_occurrences")
    )
    stats, values = _event_stats(events, plane.stat_names, code)
    return Columns(metadata, offset, duration, occurrences, values, stats)


def _event_stats(events: Any, names: Mapping[int, str], code: Any) -> tuple[dict[str, Array], Array]:
    """Return the known stats of each event as columns, and its last floating-point stat."""
    rows: dict[str, array[int]] = {name: array("q") for name in (*NUMBERS, *TEXTS)}
    held: dict[str, array[int]] = {name: array("q") for name in (*NUMBERS, *TEXTS)}
    numbers = {key: name for key, name in names.items() if name in NUMBERS}
    texts = {key: name for key, name in names.items() if name in TEXTS}
    value_rows, values = array("q"), array("d")
    for row, event in enumerate(events):
        for stat in event.stats:
            key = stat.metadata_id
            if key in numbers:
                name = numbers[key]
                number = stat.int64_value or stat.uint64_value or _written(stat.str_value)
                rows[name].append(row)
                held[name].append(signed(number))
            elif key in texts:
                name = texts[key]
                rows[name].append(row)
                held[name].append(code(names.get(stat.ref_value, "") if stat.ref_value else stat.str_value))
            elif stat.double_value:
                value_rows.append(row)
                values.append(stat.double_value)
    columns = {}
    for name, found in rows.items():
        if found:
            columns[name] = np.full(len(events), MISSING, np.int64)
            columns[name][np.asarray(found)] = held[name]
    doubles = np.full(len(events), np.nan)
    doubles[np.asarray(value_rows, np.int64)] = values
    return columns, doubles


def _written(text: str) -> int:
    """Return a number that was written as text (TPU); 0 for other text, the default of proto3."""
    return int(text) if text.isdecimal() and len(text) < 20 else 0


def whole_ns(ps: Array) -> Array:
    """Convert picoseconds (int64) to nanoseconds, rounded half to even."""
    quotient, rest = np.divmod(ps, 1000)
    up = (rest > 500) | ((rest == 500) & (quotient % 2 == 1))
    return np.asarray(quotient + up, np.int64)


def signed(number: int) -> int:
    """Return an unsigned 64-bit number as its two's complement."""
    return number - (1 << 64) if number >= _SIGN else number
