"""The index of the timeline: exact busy time of any pixel, and every event wide enough to be seen.

Two indexes over the events of a lane, which do not overlap:

1. Prefix sums of busy time per lane and category. With B(t) the busy time before t, a pixel from a to b holds exactly
   B(b) - B(a), whatever the zoom; B is a binary search.
2. Events by the power of two of their duration, each class sorted by start: events of at least two pixels are in
   the upper classes, found by one binary search per class.

Both are plain arrays, mapped into memory on request, so that servers share them and opening takes no time.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from perfscope.dashboards.web.timeline.lanes import CATEGORY_WORDS, Category, Events, Int32, Lane
from perfscope.model.errors import DataError
from perfscope.model.intervals import Int64

CLASSES = 64
_ARRAYS = (
    "start",
    "end",
    "name",
    "category",
    "table",
    "row",
    "lane",
    "lane_at",
    "busy_start",
    "busy_end",
    "busy_sum",
    "busy_at",
    "by_class",
    "class_at",
)

WIDE_PX = 2
"""Least width in pixels of an event with its own box."""
LEVELS = 16
MOST_COLUMNS = 8_192
MOST_LANES = 400
MARGIN_PX = 4.0
"""Pixels by which a box may extend beyond the tile before it is cut."""


class Index(Events, frozen=True, kw_only=True):
    """Events of one trace with their index; ``*_at``: where parts begin (CSR)."""

    lane_at: Int64
    busy_start: Int64
    busy_end: Int64
    busy_sum: Int64
    """Busy time before each event, within its lane and category."""
    busy_at: Int64
    by_class: Int32
    """Rows of events by lane, class of duration and start."""
    class_at: Int64

    def span(self) -> tuple[int, int]:
        """First start and last end; (0, 0) without events."""
        return (int(self.start.min()), int(self.end.max())) if len(self) else (0, 0)

    def busy(self, lane: int, edges: Int64) -> tuple[list[int], npt.NDArray[np.int64]]:
        """Busy ns between neighbouring ``edges`` (n + 1, rising), by category.

        Returns the categories that occur, and an array of shape (categories, n).
        """
        kinds, result = [], []
        first = lane * len(CATEGORY_WORDS)
        for category in range(len(CATEGORY_WORDS)):
            low, high = int(self.busy_at[first + category]), int(self.busy_at[first + category + 1])
            if low == high or self.busy_end[high - 1] <= edges[0] or self.busy_start[low] >= edges[-1]:
                continue
            first_in, behind = np.searchsorted(self.busy_start[low:high], edges[[0, -1]], side="right") + low
            inside = slice(max(int(first_in) - 1, low), int(behind))  # searching in these only reads few pages
            start, end, before = self.busy_start[inside], self.busy_end[inside], self.busy_sum[inside]
            positions = np.searchsorted(start, edges, side="right") - 1
            place = np.maximum(positions, 0)
            until = before[place] + np.minimum(edges, end[place]) - start[place]
            until[positions < 0] = before[0]
            kinds.append(category)
            result.append(np.diff(until))
        return kinds, np.array(result) if result else np.empty((0, len(edges) - 1), np.int64)

    def instants(self, lane: int, low_ns: int, high_ns: int) -> Int64:
        """Events of a lane with zero duration that begin in [low, high), by start: at most one per ns."""
        rows = self.by_class[self.class_at[lane * CLASSES] : self.class_at[lane * CLASSES + 1]]
        first, last = (bisect_left(rows, edge, key=lambda row: int(self.start[row])) for edge in (low_ns, high_ns))
        results = np.asarray(rows[first:last], np.int64)
        return np.asarray(results[self.end[results] == self.start[results]], np.int64)

    def wide(self, lane: int, low_ns: int, high_ns: int, least_ns: int) -> Int64:
        """Events of a lane that touch [low, high) and last at least ``least_ns``, by start."""
        lowest = max(int(least_ns).bit_length() - 1, 0)
        result = []
        for step in range(lowest, CLASSES):
            begin, stop = self.class_at[lane * CLASSES + step], self.class_at[lane * CLASSES + step + 1]
            if begin == stop:
                continue
            rows = self.by_class[begin:stop]
            start = self.start[rows] if stop - begin < 64 else None
            if start is None:
                first, last = _between(self.start, self.end, rows, low_ns, high_ns)
            else:
                first = int(np.searchsorted(self.end[rows], low_ns, side="right"))
                last = int(np.searchsorted(start, high_ns, side="left"))
            if last > first:
                result.append(np.asarray(rows[first:last], np.int64))
        if not result:
            return np.empty(0, np.int64)
        rows = np.concatenate(result)
        rows = rows[self.end[rows] - self.start[rows] >= least_ns]
        return np.sort(rows)

    def of_lane(self, lane: int) -> slice:
        """The part of the arrays with the events of the lane."""
        return slice(int(self.lane_at[lane]), int(self.lane_at[lane + 1]))


def _between(start: Int64, end: Int64, rows: Int32, low_ns: int, high_ns: int) -> tuple[int, int]:
    """The part of ``rows`` (by start, not overlapping) that touches [low, high): a search that reads few pages."""
    first, stop = 0, len(rows)
    while first < stop:
        middle = (first + stop) // 2
        first, stop = (middle + 1, stop) if end[rows[middle]] <= low_ns else (first, middle)
    last, stop = first, len(rows)
    while last < stop:
        middle = (last + stop) // 2
        last, stop = (middle + 1, stop) if start[rows[middle]] < high_ns else (last, middle)
    return first, last


def build(events: Events) -> Index:
    """Build the index of ``events``."""
    count, kinds = len(events.lanes), len(CATEGORY_WORDS)
    busy_key = events.lane.astype(np.int64) * kinds + events.category
    order = np.argsort(busy_key, kind="stable")
    lasts = (events.end - events.start)[order]
    busy_at = np.searchsorted(busy_key[order], np.arange(count * kinds + 1))
    sums = np.concatenate(([0], np.cumsum(lasts)))
    base = np.repeat(sums[busy_at[:-1]], np.diff(busy_at))
    step = np.frexp(np.maximum(events.end - events.start, 1).astype(np.float64))[1] - 1
    # rounded up to a power of two
    exact = (np.int64(1) << step.astype(np.int64)) > np.maximum(events.end - events.start, 1)
    class_key = events.lane.astype(np.int64) * CLASSES + step - exact
    by_class = np.argsort(class_key, kind="stable")
    return Index(
        **{name: getattr(events, name) for name in Events.__struct_fields__},
        lane_at=np.searchsorted(events.lane, np.arange(count + 1)),
        busy_start=events.start[order],
        busy_end=events.end[order],
        busy_sum=sums[:-1] - base,
        busy_at=busy_at,
        by_class=by_class.astype(np.int32),
        class_at=np.searchsorted(class_key[by_class], np.arange(count * CLASSES + 1)),
    )


def save(index: Index, folder: Path) -> None:
    """Write the index as plain arrays, with the lanes in a file next to them."""
    for key in _ARRAYS:
        np.save(folder / f"{key}.npy", getattr(index, key))
    (folder / "lanes.json").write_bytes(msgspec.json.encode(index.lanes))


def load(folder: Path) -> Index:
    """Map the index into memory; ``DataError`` if it is missing or damaged."""
    try:
        lanes = msgspec.json.decode((folder / "lanes.json").read_bytes(), type=list[dict[str, Any]])
        arrays: dict[str, Any] = {
            key: np.asarray(np.load(folder / f"{key}.npy", mmap_mode=_mode(folder / f"{key}.npy"))) for key in _ARRAYS
        }
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        raise DataError(f"{folder}: no timeline is kept here ({error})") from error
    return Index(lanes=tuple(Lane(**lane) for lane in lanes), **arrays)


def events_kept(folder: Path) -> int | None:
    """Events in the index stored in ``folder``; None without an index."""
    file = folder / "start.npy"
    return len(np.load(file, mmap_mode=_mode(file))) if file.is_file() else None


def _mode(path: Path) -> Any:
    """The mapping mode: an empty array cannot be mapped."""
    return "r" if path.stat().st_size > 128 else None


def names_by_time(index: Index) -> Iterator[tuple[int, int, int]]:
    """(name, events, ns) of all names, longest time first."""
    codes, positions = np.unique(index.name, return_inverse=True)
    total = np.bincount(positions, weights=(index.end - index.start).astype(np.float64)) if len(codes) else np.empty(0)
    count = np.bincount(positions) if len(codes) else np.empty(0, np.int64)
    for place in np.argsort(-total, kind="stable").tolist():
        yield int(codes[place]), int(count[place]), int(total[place])


def categories(numbers: Sequence[int]) -> list[str]:
    """Names of categories."""
    return [CATEGORY_WORDS[Category(number)] for number in numbers]


# A section of a timeline as bytes: what a canvas needs to draw it, limited to what its pixels can show.
#
# A tile is a JSON head (preceded by its length as uint32) and arrays, each beginning at a multiple of 4 bytes:
#
# | array | type | what |
# | --- | --- | --- |
# | `cell_lane`, `cell_x`, `cell_width` | uint16 | runs of equal pixels of one lane |
# | `cell_category`, `cell_level` | uint8 | the category with most time in it; how full it is, 1 to 16 |
# | `box_event` | uint32 | number of an event of at least two pixels |
# | `box_low`, `box_high` | float32 | pixels, cut at the edges of the tile |
# | `box_lane` | uint16 | |
# | `box_name` | uint32 | number of the name in the timeline |
# | `box_category` | uint8 | |
#
# Pixels are relative to the tile; the head has its times and lanes. All numbers are little endian.


def tile(index: Index, low_ns: int, high_ns: int, columns: int, lanes: Sequence[int]) -> bytes:
    """The lanes between ``low_ns`` and ``high_ns`` on ``columns`` pixels. ``lane`` in it counts ``lanes`` as given."""
    span = max(high_ns - low_ns, 1)
    edges = edges_of(low_ns, high_ns, columns)
    least = max(-(-span * WIDE_PX // columns), 1)
    cells: list[tuple[npt.NDArray[np.int64], ...]] = []
    boxes: list[tuple[int, npt.NDArray[np.int64]]] = []
    for position, lane in enumerate(lanes):
        held = index.of_lane(lane)
        if held.start == held.stop or index.start[held.start] > high_ns or index.end[held.stop - 1] < low_ns:
            continue
        rows = index.wide(lane, low_ns, high_ns, least)
        if len(rows):
            boxes.append((position, rows))
        cells.append((np.array(position), *_cells(index, lane, edges)))
    return _packed(index, (low_ns, high_ns, columns), lanes, cells, boxes)


def edges_of(low_ns: int, high_ns: int, columns: int) -> npt.NDArray[np.int64]:
    """Starts of the pixels, and the end of the last one: shape (columns + 1,)."""
    edges = low_ns + (np.arange(columns + 1, dtype=np.float64) * (max(high_ns - low_ns, 1) / columns)).astype(np.int64)
    edges[-1] = high_ns
    return np.asarray(edges, np.int64)


def _cells(index: Index, lane: int, edges: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
    """(x, width, category, level) of runs of equal pixels; pixels without events have none."""
    kinds, busy = index.busy(lane, edges)
    total = busy.sum(axis=0)
    category = np.array(kinds or [0])[busy.argmax(axis=0) if len(kinds) > 1 else np.zeros(len(total), np.intp)]
    level = np.minimum(-(-total * LEVELS // np.maximum(np.diff(edges), 1)), LEVELS)
    points = index.instants(lane, int(edges[0]), int(edges[-1]))
    if len(points):  # events of zero duration are visible too
        pixel, first = np.unique(np.searchsorted(edges, index.start[points], side="right") - 1, return_index=True)
        alone = total[pixel] == 0
        category[pixel[alone]] = index.category[points[first[alone]]]
        level[pixel[alone]] = 1
    look = np.where(level > 0, category * (LEVELS + 1) + level, -1)
    first = np.flatnonzero(np.concatenate(([True], look[1:] != look[:-1])))
    last = np.concatenate((first[1:], [len(look)]))
    kept = look[first] >= 0
    first, last = first[kept], last[kept]
    return first, last - first, category[first], level[first]


def _packed(
    index: Index,
    shape: tuple[int, int, int],
    lanes: Sequence[int],
    cells: list[tuple[npt.NDArray[np.int64], ...]],
    boxes: list[tuple[int, npt.NDArray[np.int64]]],
) -> bytes:
    low, high, columns = shape
    scale = columns / max(high - low, 1)
    rows = np.concatenate([found for _, found in boxes]) if boxes else np.empty(0, np.int64)
    box_lane = np.repeat([index for index, _ in boxes], [len(found) for _, found in boxes]) if boxes else rows
    clipped = (-MARGIN_PX, columns + MARGIN_PX)
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "box_event": rows.astype("<u4"),
        "box_low": np.clip((index.start[rows] - low) * scale, *clipped).astype("<f4"),
        "box_high": np.clip((index.end[rows] - low) * scale, *clipped).astype("<f4"),
        "box_name": index.name[rows].astype("<u4"),
        "box_lane": np.asarray(box_lane).astype("<u2"),
        "cell_lane": np.repeat([int(cell[0]) for cell in cells], [len(cell[1]) for cell in cells]).astype("<u2"),
    }
    for position, (key, kind) in enumerate(
        (("x", "<u2"), ("width", "<u2"), ("category", "u1"), ("level", "u1")), start=1
    ):
        results = [cell[position] for cell in cells]
        arrays[f"cell_{key}"] = (np.concatenate(results) if results else np.empty(0)).astype(kind)
    arrays["box_category"] = index.category[rows].astype("u1")
    body, places = [], {}
    offset = 0
    for key, values in arrays.items():
        places[key] = (offset, len(values))
        content = values.tobytes()
        body.append(content + b"\0" * (-len(content) % 4))
        offset += len(body[-1])
    head = msgspec.json.encode(
        {"low": str(low), "high": str(high), "columns": columns, "lanes": list(lanes), "arrays": places}
    )
    head += b" " * (-len(head) % 4)
    return struct.pack("<I", len(head)) + head + b"".join(body)
