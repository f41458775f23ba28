"""Events of a line and their stats as columns, from the bytes: numpy reads fields of many messages side by side.

A batch of messages is a set of cursors. Each round reads one field at every cursor that is inside of its message, so
there are as many rounds as the longest message has fields. A number is read by one load of 8 bytes.

Only the output of XLA's profilers is supported. ``UnusualError`` for anything else, from an unknown field to a
truncated message; the caller then decodes the line with protobuf, which is slower and complete.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from perfscope.model.intervals import numbered
from perfscope.model.trace.columns import MISSING, Array
from perfscope.model.wire import Data

_EVENT_KEY = 0x22
_BATCH = 1 << 16
"""Number of events that are read side by side, so that cursors and numbers stay in the processor's caches."""
_PADDING = bytes(16)
"""Padding for a load of 8 bytes at the last byte."""

_Words = npt.NDArray[np.uint64]
_U = np.uint64
_STOP, _LOW = _U(0x8080808080808080), _U(0x7F7F7F7F7F7F7F7F)
_LENGTHS = _U(0x0102030405060708)

_DOUBLE, _UNSIGNED, _SIGNED, _TEXT, _BYTES, _REFERENCE = 0x11, 0x18, 0x20, 0x2A, 0x32, 0x38


class UnusualError(Exception):
    """Bytes that are not in the form that profilers write."""


def split(data: Data, start: int, end: int) -> tuple[bytes, Array]:
    """Return the fields of the line at ``[start, end)`` itself, and the offset of each event's length.

    Offsets are from ``start``, int64; a last one is the end of the last event. ``UnusualError`` if a field reaches
    beyond the end, or a field of the line itself is between events.
    """
    line = bytes(data[start:end])
    size = len(line)
    begins = array("q")
    own: list[bytes] = []
    note, index, last = begins.append, 0, 0
    try:
        while index < size:
            if line[index] == _EVENT_KEY:
                if index != last and begins:
                    raise UnusualError
                note(index)
                length = line[index + 1]
                if length < 0x80:
                    index += 2 + length
                else:
                    length, index = _long(line, index + 1)
                    index += length
                last = index
            else:
                begin, index = index, _after(line, index)
                own.append(line[begin:index])
    except IndexError:
        raise UnusualError from None
    if index != size:
        raise UnusualError
    note(last)
    return b"".join(own), np.frombuffer(begins, np.int64)


def _long(line: bytes, index: int) -> tuple[int, int]:
    value = shift = 0
    for position in range(index, index + 5):
        value |= (line[position] & 0x7F) << shift
        if line[position] < 0x80:
            return value, position + 1
        shift += 7
    raise UnusualError


def _after(line: bytes, index: int) -> int:
    """Return the end of the field at ``index``; only keys of one byte, numbers and texts."""
    kind = line[index] & 7
    if line[index] >= 0x80 or kind not in (0, 2):
        raise UnusualError
    index += 1
    if kind == 2:
        length, index = _long(line, index)
        return index + length
    while line[index] >= 0x80:
        index += 1
    return index + 1


class Columns(Struct):
    """The columns of a line under construction, one entry per event."""

    metadata: Array
    offset_ps: Array
    duration_ps: Array
    occurrences: Array
    values: Array
    stats: dict[str, Array] = field(default_factory=dict)

    @classmethod
    def empty(cls, count: int) -> Columns:
        """Return columns of zeros, and NaN for the values."""
        metadata, offset, duration, occurrences = (np.zeros(count, np.int64) for _ in range(4))
        return cls(metadata, offset, duration, occurrences, np.full(count, np.nan))


class Wanted(Struct, frozen=True, kw_only=True):
    """Names of the stats that are read, and their conversions."""

    numbers: dict[int, str]
    """Name of a stat that is a number, by metadata id."""
    texts: dict[int, str]
    refers: Callable[[int], int]
    """Code of the text of a ``ref_value``."""
    code: Callable[[str], int]
    number: Callable[[str], int]
    """Number of a text."""


def read_events(data: Data, start: int, begins: Array, wanted: Wanted) -> Columns:
    """Return columns of the events at ``begins`` (``split``) of the line that begins at ``start``."""
    columns = Columns.empty(len(begins) - 1)
    for low in range(0, len(begins) - 1, _BATCH):
        part = begins[low : low + _BATCH + 1]
        first, last = int(part[0]), int(part[-1])
        block = _Block(bytes(data[start + first : start + last]) + _PADDING)
        _, contents = block.numbers(part[:-1] - (first - 1))
        _read_batch(block, contents, part[1:] - first, low, columns, wanted)
    return columns


class _Block:
    """Bytes, and the 8 bytes from each of them on as a number."""

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.bytes = np.frombuffer(text, np.uint8)
        self._words = np.ndarray((len(text) - 7,), "<u8", text, strides=(1,))

    def numbers(self, index: Array) -> tuple[_Words, Array]:
        """Return the varint at each of ``index``, and the offset after it. ``UnusualError`` for more than 10 bytes."""
        word = self._words[index]
        stop = ~word & _STOP
        last = stop & (~stop + _U(1))
        value = word & ((last << _U(1)) - _U(1)) & _LOW
        length = ((last >> _U(7)) * _LENGTHS >> _U(56)).astype(np.int64)
        if int(value.max(initial=0)) >= 0x80:
            value = (value & _U(0x007F007F007F007F)) | (value & _U(0x7F007F007F007F00)) >> _U(1)
            value = (value & _U(0x00003FFF00003FFF)) | (value & _U(0x3FFF00003FFF0000)) >> _U(2)
            value = (value & _U(0x000000000FFFFFFF)) | (value & _U(0x0FFFFFFF00000000)) >> _U(4)
        if not length.all():
            self._long(index, value, length)
        return value, index + length

    def _long(self, index: Array, value: _Words, length: Array) -> None:
        """Read numbers of 9 and 10 bytes: those above 2^56, and negative ones."""
        rows = np.flatnonzero(length == 0)
        ninth, tenth = (self.bytes[index[rows] + more].astype(np.uint64) for more in (8, 9))
        longest = ninth >= 0x80
        if (tenth[longest] >= 0x80).any():
            raise UnusualError
        value[rows] |= (ninth & _U(0x7F)) << _U(56)
        value[rows[longest]] |= tenth[longest] << _U(63)
        length[rows] = 9 + longest


def _fields(block: _Block, begin: Array, end: Array) -> Iterator[tuple[int, Array, Array, Array]]:
    """Yield (key, messages, position of the content, its number or length) of fields, in the order of each message."""
    rows = np.flatnonzero(begin < end)
    cursor, stop = begin[rows], end[rows]
    while len(rows):
        keys = block.bytes[cursor]
        for key in np.flatnonzero(np.bincount(keys)).tolist():
            chosen = slice(None) if (keys == key).all() else np.flatnonzero(keys == key)
            position = cursor[chosen] + 1
            kind = key & 7
            if kind == 1:
                content, after, value = position, position + 8, position
            elif kind in (0, 2) and key < 0x80:
                number, content = block.numbers(position)
                value = number.view(np.int64)
                after = content if kind == 0 else content + value
                if kind == 2 and (int(value.max()) > len(block.bytes) or int(value.min()) < 0):
                    raise UnusualError
            else:
                raise UnusualError
            if (after > stop[chosen]).any():
                raise UnusualError
            yield key, rows[chosen], content, value
            cursor[chosen] = after
        going = cursor < stop
        if not going.all():
            rows, cursor, stop = rows[going], cursor[going], stop[going]


def _read_batch(block: _Block, begin: Array, end: Array, low: int, columns: Columns, wanted: Wanted) -> None:
    part = slice(low, low + len(begin))
    metadata, offset, duration, occurrences = (
        column[part] for column in (columns.metadata, columns.offset_ps, columns.duration_ps, columns.occurrences)
    )
    stats: list[tuple[Array, Array, Array]] = []
    for key, rows, content, value in _fields(block, begin, end):
        if key == 0x08:
            metadata[rows] = value
        elif key == 0x10:
            offset[rows] = value
        elif key == 0x18:
            duration[rows] = value
        elif key == 0x22:
            stats.append((rows, content, content + value))
        elif key == 0x28:
            occurrences[rows] = value
        else:
            raise UnusualError
    if stats:
        owner, first, last = (np.concatenate(pieces) for pieces in zip(*stats, strict=True))
        _read_stats(block, owner + low, first, last, columns, wanted)


def _read_stats(block: _Block, owner: Array, first: Array, last: Array, columns: Columns, wanted: Wanted) -> None:
    """Read stats into columns. ``owner``: the event of each stat; stats of one event are in the order of the file."""
    key, kind, value, length = (np.zeros(len(owner), np.int64) for _ in range(4))
    for field_key, rows, content, number in _fields(block, first, last):
        if field_key == 0x08:
            key[rows] = number
            continue
        if field_key not in (_DOUBLE, _UNSIGNED, _SIGNED, _TEXT, _BYTES, _REFERENCE):
            raise UnusualError
        if kind[rows].any():  # A stat with two values.
            raise UnusualError
        kind[rows] = field_key
        value[rows] = content if field_key in (_TEXT, _DOUBLE) else number
        if field_key == _TEXT:
            length[rows] = number
    texts = kind == _TEXT
    _check_texts(block, value[texts], length[texts])
    known = np.zeros(len(owner), bool)
    for stat in numbered(key)[0].tolist():
        name = wanted.numbers.get(stat) or wanted.texts.get(stat)
        if name is None:
            continue
        rows = np.flatnonzero(key == stat)
        known[rows] = True
        answer = _numbers if stat in wanted.numbers else _codes
        column = columns.stats.get(name)
        if column is None:
            column = columns.stats[name] = np.full(len(columns.metadata), MISSING, np.int64)
        column[owner[rows]] = answer(block, kind[rows], value[rows], length[rows], wanted)
    doubles = np.flatnonzero((kind == _DOUBLE) & ~known)
    if len(doubles):
        number = block._words[value[doubles]].view(np.float64)
        columns.values[owner[doubles][number != 0]] = number[number != 0]


def _check_texts(block: _Block, begin: Array, length: Array) -> None:
    """Raise ``UnusualError`` for a text that is not UTF-8."""
    try:
        for start, size in zip(begin.tolist(), length.tolist(), strict=True):
            block.text[start : start + size].decode()
    except UnicodeDecodeError:
        raise UnusualError from None


def _numbers(block: _Block, kind: Array, value: Array, length: Array, wanted: Wanted) -> Array:
    result = np.where((kind == _UNSIGNED) | (kind == _SIGNED), value, 0)
    for row in np.flatnonzero(kind == _TEXT).tolist():
        result[row] = wanted.number(block.text[value[row] : value[row] + length[row]].decode())
    return result


def _codes(block: _Block, kind: Array, value: Array, length: Array, wanted: Wanted) -> Array:
    """Return the codes of texts; that of the empty text for anything else."""
    result = np.empty(len(kind), np.int64)
    written = kind == _TEXT
    refers = np.where(kind == _REFERENCE, value, 0)[~written]
    codes, inverse = numbered(refers)
    result[~written] = np.array([wanted.refers(number) for number in codes.tolist()], np.int64)[inverse]
    for row in np.flatnonzero(written).tolist():
        result[row] = wanted.code(block.text[value[row] : value[row] + length[row]].decode())
    return result
