"""Allocator state of a snapshot: its segments and their blocks."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from perfscope.model.errors import DataError
from perfscope.model.trace import TraceBuilder
from perfscope.model.trace.columns import MISSING, Array, Rows
from perfscope.model.trace.tables import FRAMES, HELD, SEGMENTS, HeldState

MOST_ROWS = 4_000_000
"""Maximum number of rows: a program has some ten thousand different callers, and each row takes about 150 bytes here.
"""

_NO_FILE = ("", "??", "none", "<unknown>")
"""Texts of torch for an unknown file (of C++ functions)."""
_LARGEST_LINE = 2**31 - 1

_STATES = {
    "active_allocated": HeldState.IN_USE,
    "active_awaiting_free": HeldState.AWAITING_FREE,
    "active_pending_free": HeldState.AWAITING_FREE,
    "inactive": HeldState.FREE,
}
"""torch's words; ``active_pending_free`` occurs in snapshots of C++."""

DEFAULT_POOL = ("(0, 0)", "")

Row = dict[str, Any]


# Stacks of a snapshot as rows that share their callers.


class Stacks:
    """Frames seen so far; equal stacks have the same row."""

    def __init__(self, strings: TraceBuilder) -> None:
        self._strings = strings
        self._file, self._line, self._name, self._parent = array("i"), array("i"), array("i"), array("i")
        self._frames: dict[tuple[object, object, object], tuple[int, int, int, int]] = {}
        self._rows: dict[int, int] = {}
        self._known: dict[tuple[int, ...], tuple[int, list[Any]]] = {}
        """By the identities of their frames, which entries share: rows of stacks, with the frames to keep them alive.
        """

    def of(self, frames: object) -> int:
        """Return the row of the innermost of ``frames``; ``MISSING`` if it is not a list. Invalid frames are left out.

        Only ``filename``, ``line`` and ``name`` of a frame are read. ``DataError`` for too many.
        """
        row = MISSING
        if type(frames) is not list:
            return row
        identity = tuple(map(id, frames))
        if identity in self._known:
            return self._known[identity][0]
        for frame in reversed(frames):
            if type(frame) is dict:
                number, *parts = self._frame(frame)
                key = (row + 1) << 32 | number
                result = self._rows.get(key)
                if result is None:
                    result = self._rows[key] = len(self._parent)
                    if result >= MOST_ROWS:
                        raise DataError(f"more than {MOST_ROWS:,} different stack frames: refused")
                    for column, value in zip((self._file, self._line, self._name), parts, strict=True):
                        column.append(value)
                    self._parent.append(row)
                row = result
        self._known[identity] = (row, frames)
        return row

    def _frame(self, frame: dict[str, Any]) -> tuple[int, int, int, int]:
        """Return the frame's number, code of its file, line, and code of its name."""
        file, line, name = frame.get("filename"), frame.get("line"), frame.get("name")
        file = file if type(file) is str else ""
        line = line if type(line) is int and 0 < line <= _LARGEST_LINE else MISSING
        name = name if type(name) is str else ""
        key = (file, line, name)
        found = self._frames.get(key)
        if found is None:
            code = MISSING if file in _NO_FILE else self._strings.code(file)
            found = self._frames[key] = (len(self._frames), code, line, self._strings.code(name))
        return found

    def start(self, texts: list[str], frames: Array, rows: Array) -> None:
        """Take over the first frames and rows, as in ``NativeSnapshot``."""
        parts = [
            self._frame({"filename": texts[file], "line": line, "name": texts[name]})
            for file, line, name in frames.tolist()
        ]
        parents, numbers = rows[:, 0], rows[:, 1]
        columns = np.array(parts, np.int32).reshape(-1, 4)[numbers].T[1:]
        for column, values in zip((self._file, self._line, self._name, self._parent), (*columns, parents), strict=True):
            column.frombytes(values.tobytes())
        keys = (parents.astype(np.int64) + 1) << 32 | numbers
        self._rows = {key: row for row, key in enumerate(keys.tolist())}

    def rows(self) -> Rows:
        """The table ``frames``."""
        columns = {"file": self._file, "line": self._line, "name": self._name, "parent": self._parent}
        return Rows(FRAMES, {name: np.array(values, np.int32) for name, values in columns.items()})


class State(Struct, frozen=True, kw_only=True):
    """The tables ``segments`` and ``held``, and the entries without a place."""

    segments: Rows
    held: Rows
    unplaced: dict[str, int]
    reserved: dict[int, int]
    """Bytes of all segments by device."""


def state_of(found: list[Any], stacks: Stacks, strings: TraceBuilder) -> State:
    """Return the tables of a snapshot's ``segments``."""
    segments: list[Row] = []
    held: list[Row] = []
    unplaced: dict[str, int] = {}
    reserved: dict[int, int] = {}
    for one in found:
        if type(one) is not dict:
            unplaced["invalid segments"] = unplaced.get("invalid segments", 0) + 1
            continue
        ordinal = _number(one.get("device"), 0)
        place = {"on_device": True, "ordinal": ordinal}
        total = _size(one, "total_size")
        blocks = list(_blocks(one, stacks, unplaced))
        held.extend({**block, **place, "segment": len(segments)} for block in blocks)
        segments.append(_segment(one, blocks, place, total, stacks, strings))
        reserved[ordinal] = reserved.get(ordinal, 0) + total
    return State(segments=_rows(SEGMENTS, segments), held=_rows(HELD, held), unplaced=unplaced, reserved=reserved)


def _segment(one: Row, blocks: list[Row], place: Row, total: int, stacks: Stacks, strings: TraceBuilder) -> Row:
    used = [block for block in blocks if block["state"] == HeldState.IN_USE]
    active = [block for block in blocks if block["state"] != HeldState.FREE]
    kind, pool = one.get("segment_type"), pool_of(one.get("segment_pool_id"))
    return {
        **place,
        "address": _size(one, "address"),
        "bytes": total,
        "allocated_bytes": _number(one.get("allocated_size"), sum(block["bytes"] for block in used)),
        "active_bytes": _number(one.get("active_size"), sum(block["bytes"] for block in active)),
        "requested_bytes": _number(one.get("requested_size"), MISSING),
        "stream": _number(one.get("stream"), MISSING),
        "pool": MISSING if pool is None else strings.code(pool),
        "kind": strings.code(kind) if type(kind) is str else MISSING,
        "expandable": one.get("is_expandable") is True,
        "frame": stacks.of(one.get("frames")),
    }


def _blocks(segment: Row, stacks: Stacks, unplaced: dict[str, int]) -> Iterator[Row]:
    """Yield the blocks of a segment. They are contiguous, so readers of older schemas compute their addresses."""
    address = _size(segment, "address")
    blocks = segment.get("blocks")
    for block in blocks if type(blocks) is list else ():
        named = block.get("state") if type(block) is dict else None
        state = _STATES.get(named) if type(named) is str else None
        if state is None:
            unplaced["blocks in an unknown state"] = unplaced.get("blocks in an unknown state", 0) + 1
            continue
        size, requested, frames = _size(block, "size"), block.get("requested_size"), block.get("frames")
        history = block.get("history")
        if type(history) is list and history and type(history[0]) is dict:  # torch 2.0.
            frames, requested = history[0].get("frames"), history[0].get("real_size", requested)
        yield {
            "address": _number(block.get("address"), address),
            "bytes": size,
            "requested_bytes": _number(requested, MISSING) if state != HeldState.FREE else MISSING,
            "count": 1,
            "state": int(state),
            "frame": stacks.of(frames) if state != HeldState.FREE else MISSING,
        }
        address += size


def pool_of(value: object) -> str | None:
    """Return the name of a memory pool, ``None`` for the default one: ``(0, 0)``."""
    text = str(value) if type(value) in (tuple, str) else ""
    return None if text in DEFAULT_POOL else text


def _number(value: object, other: int) -> int:
    if type(value) is not int:
        return other
    if not 0 <= value < 2**60:
        raise DataError(f"a number of {value:,} in a snapshot: refused")
    return value


def _size(row: Row, name: str) -> int:
    return _number(row.get(name), 0)


def _rows(table: Any, rows: list[Row]) -> Rows:
    names = [column.name for column in table.columns if rows and column.name in rows[0]]
    return Rows(table, {name: np.array([row[name] for row in rows]) for name in names})
