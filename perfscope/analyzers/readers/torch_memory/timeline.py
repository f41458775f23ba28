"""Memory timelines of torch.profiler: what ``profile.export_memory_timeline(path)`` writes, gzip or not.

``.raw.json.gz`` has a row for each change of a tensor's memory, in the order they happened (time in ns, ``-1`` before
the profile began; action 1 there before, 2 made, 3 written to, 4 let go; bytes; category):

``[[-1, 1, 37888, 0], [1696966047096587016, 2, 8192, 4], [1696966047096589594, 4, -8192, 4], ...]``

A tensor that is written to has two rows, of the old version and of the new one, which may be of another category. Rows
name no block. Here a row that takes memory away belongs to the oldest block of its size and category, and the two rows
of a write to the same block; totals do not depend on it, the lifetime of one block among equal ones does.

``.json`` and ``.json.gz`` hold totals by category at each microsecond and no blocks: ``[[times], [[0, totals ...]]]``.
They become counters, and a block for each stretch in which a category holds as much. ``.html`` is a picture, of which
nothing can be read.

Categories by number: ``torch.profiler._memory_profiler._CATEGORY_TO_INDEX``.
"""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from perfscope.analyzers.readers.file_bytes import open_bytes
from perfscope.model.errors import DataError
from perfscope.model.trace import Trace, TraceBuilder
from perfscope.model.trace.tables import MemoryAction, MemoryCategory

FORMAT = "torch_memory_timeline"

LARGEST = 512 << 20
"""Bytes of a file: some ten million rows, which are decoded as a whole."""
MOST_BYTES = 10**15
"""Of one row, so that totals do not overflow."""

CATEGORIES = (
    MemoryCategory.PARAMETER, MemoryCategory.OPTIMIZER_STATE, MemoryCategory.INPUT, MemoryCategory.TEMPORARY,
    MemoryCategory.ACTIVATION, MemoryCategory.GRADIENT, MemoryCategory.AUTOGRAD_DETAIL, MemoryCategory.UNKNOWN,
)  # fmt: skip
"""By torch's number; the last is what torch found no category for."""

_THERE, _MADE, _WRITTEN, _LET_GO = 1, 2, 3, 4

_ROW = rb"\[\s*-?[1-8]?\d{1,18}\s*,\s*[1-4]\s*,\s*-?\d{1,15}\s*,\s*[0-7]\s*\]"
_BEGINS_RAW = re.compile(rb"\s*\[\s*%s\s*[,\]]" % _ROW)
_BEGINS_TOTALS = re.compile(rb"\[\[\d{10,17}(?:, \d{10,17})*+(?:\], \[\[0, \d|, ?\d*$|\]?,?$)")
_PICTURE = b"<title>GPU Memory Timeline HTML</title>"

_NO_DEVICE = "the file does not say whose memory it is: torch exports one device at a time (cuda:0 unless told)"
_PAIRED = (
    "rows name no block: what was let go is taken for the oldest block of its size and category "
    "(totals do not depend on it, lifetimes do)"
)

Int64 = npt.NDArray[np.int64]


def sniff(path: Path, head: bytes) -> bool:
    """True for rows, totals or the picture of a memory timeline."""
    begins = (_BEGINS_RAW, _BEGINS_TOTALS)
    return any(pattern.match(head) for pattern in begins) or (head[:6] == b"<html>" and _PICTURE in head[:1024])


def read(path: Path) -> Trace:
    """The timeline at ``path``; ``DataError``, one line, if it is a picture, corrupt or too large."""
    with open_bytes(path, LARGEST) as data:
        if data[:6] == b"<html>":
            raise DataError(
                f"{path}: a picture of a memory timeline, which holds no data; "
                'export_memory_timeline("memory.raw.json.gz") writes what it was drawn from'
            )
        whole = bytes(data)
        return _of_rows(path, _rows(path, whole)) if _BEGINS_RAW.match(whole) else _of_totals(path, whole)


def _rows(path: Path, data: bytes) -> Int64:
    """All rows, (n, 4)."""
    try:
        rows = np.array(msgspec.json.decode(data, type=list[tuple[int, int, int, int]]), np.int64)
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: cut off, corrupt, or not a memory timeline: {error}") from error
    _, action, size, category = rows.T
    if (np.abs(size) >= MOST_BYTES).any() or (action // 5 != 0).any() or (category // len(CATEGORIES) != 0).any():
        raise DataError(f"{path}: corrupt, or not a memory timeline: a row that cannot be")
    return rows


def _of_rows(path: Path, rows: Int64) -> Trace:
    time, action, size, number = rows.T
    block, lost = _blocks(action.tolist(), size.tolist(), number.tolist())
    known = time[time >= 0]
    start = int(known.min()) if len(known) else 0
    order_of_time = np.maximum.accumulate(np.where(time < 0, start, time))
    back = int((order_of_time != np.where(time < 0, start, time)).sum())
    meaning = np.where(size < 0, MemoryAction.FREE, MemoryAction.ALLOCATE)
    meaning[action == _THERE] = MemoryAction.HELD_BEFORE
    memory = {
        "time_ns": order_of_time,
        "on_device": np.ones(len(rows), bool),
        "address": block.astype(np.uint64),
        "bytes": size,
        "allocated_bytes": np.cumsum(size),
        "action": meaning,
        "category": np.array(CATEGORIES, np.uint8)[number],
    }
    builder = TraceBuilder(str(path), FORMAT)
    builder.events, builder.events_only = len(rows), not len(known)
    builder.repairs["times that run backwards"] = back
    builder.note(_NO_DEVICE, _PAIRED)
    if lost:
        builder.note(f"{lost:,} rows let go of blocks that no row made: taken as held before")
    builder.table("memory", memory)
    builder.record("memory")
    return builder.build()


def _blocks(actions: list[int], sizes: list[int], categories: list[int]) -> tuple[Int64, int]:
    """A number for the block of each row, (n,), from 1; and how many rows let go of what no row made."""
    waiting: dict[tuple[int, int], deque[int]] = {}
    result = np.empty(len(actions), np.int64)
    made = lost = 0
    written: deque[int] = deque()
    for row, (action, size, category) in enumerate(zip(actions, sizes, categories, strict=True)):
        if size < 0 or (size == 0 and action == _LET_GO):
            queue = waiting.get((-size, category))
            if queue:
                block = queue.popleft()
            else:
                made += 1
                lost += 1
                block = made
            if action == _WRITTEN:
                written.append(block)
        elif action == _WRITTEN and written:
            block = written.popleft()
            waiting.setdefault((size, category), deque()).append(block)
        else:
            made += 1
            block = made
            waiting.setdefault((size, category), deque()).append(block)
        result[row] = block
    return result, lost


def _of_totals(path: Path, data: bytes) -> Trace:
    try:
        times, totals = msgspec.json.decode(data, type=tuple[list[int], list[list[int]]])
        values = np.array(totals, np.float64)
        positions = np.array(times, np.int64)
    except (msgspec.MsgspecError, ValueError, OverflowError) as error:
        raise DataError(f"{path}: corrupt, or not a memory timeline: {error}") from error
    if (
        values.shape != (len(positions), len(CATEGORIES) + 1)
        or len(positions) == 0
        or int(positions.max()) >= 2**63 // 1000
    ):
        raise DataError(
            f"{path}: corrupt, or not a memory timeline: {len(positions):,} times, totals of shape {values.shape}"
        )
    builder = TraceBuilder(str(path), FORMAT)
    builder.add_strings([f"memory: {category.name.lower().replace('_', ' ')}" for category in CATEGORIES])
    builder.events = len(positions)
    builder.table(
        "counters",
        {
            "time_ns": np.repeat(positions * 1000, len(CATEGORIES)),
            "name": np.tile(np.arange(len(CATEGORIES)), len(positions)),
            "value": values[:, 1:].reshape(-1),
        },
    )
    builder.table("memory", _category_events(positions * 1000, values[:, 1:].astype(np.int64)))
    builder.record("memory")
    builder.note(
        _NO_DEVICE,
        "it holds totals by category and no blocks: a block is what a category holds until that changes; "
        'export_memory_timeline("memory.raw.json.gz") writes who holds what',
    )
    return builder.build()


def _category_events(times: Int64, totals: Int64) -> dict[str, npt.NDArray[Any]]:
    """Columns of ``memory``: where the total of a category changes, its old block ends and a new one begins.

    ``times``: ns, (n,); ``totals``: bytes, (n, categories). Of one time what ends comes first, as in an allocator.
    """
    before = np.vstack((np.zeros((1, totals.shape[1]), np.int64), totals[:-1]))
    parts = []
    for size, is_free in ((before, 1), (totals, 0)):
        row, category = np.nonzero((before != totals) & (size != 0))
        parts.append(np.stack((row, np.full(len(row), 1 - is_free), category, size[row, category] * (1 - 2 * is_free))))
    events = np.concatenate(parts, axis=1)
    row, made, category, change = events[:, np.lexsort(events[1::-1])]
    return {
        "time_ns": times[row],
        "on_device": np.ones(len(row), bool),
        "address": category + 1,
        "bytes": change,
        "allocated_bytes": np.cumsum(change),
        "action": np.where(made, MemoryAction.ALLOCATE, MemoryAction.FREE),
        "category": np.array(CATEGORIES, np.uint8)[category],
    }
