"""A piece of a timeline as bytes: what a canvas needs to draw it, and no more than its pixels can show.

A tile is a JSON head (its length first, as uint32) and arrays behind it, each beginning at a multiple of 4 bytes:

| array | type | what |
| --- | --- | --- |
| `cell_lane`, `cell_x`, `cell_width` | uint16 | runs of pixels of one lane that look alike |
| `cell_category`, `cell_level` | uint8 | the category with most time there; how full they are, 1 to 16 |
| `box_event` | uint32 | events of two pixels and more: their number |
| `box_low`, `box_high` | float32 | pixels, cut at the edges of the tile |
| `box_lane` | uint16 | |
| `box_name` | uint32 | into the names of the timeline |
| `box_category` | uint8 | |

Pixels are of the tile; the head says which times and lanes it is about. All numbers are little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from perfscope.dashboards.web.timeline.index import Index

WIDE_PX = 2
"""From here on an event has a box of its own."""
LEVELS = 16
MOST_COLUMNS = 8_192
MOST_LANES = 400
MARGIN_PX = 4.0
"""How far a box may reach beyond the tile: it was cut there."""


def tile(index: Index, low_ns: int, high_ns: int, columns: int, lanes: Sequence[int]) -> bytes:
    """The lanes between ``low_ns`` and ``high_ns`` on ``columns`` pixels. ``lane`` in it counts ``lanes`` as given."""
    span = max(high_ns - low_ns, 1)
    edges = edges_of(low_ns, high_ns, columns)
    least = max(-(-span * WIDE_PX // columns), 1)
    cells: list[tuple[npt.NDArray[np.int64], ...]] = []
    boxes: list[tuple[int, npt.NDArray[np.int64]]] = []
    for place, lane in enumerate(lanes):
        held = index.of_lane(lane)
        if held.start == held.stop or index.start[held.start] > high_ns or index.end[held.stop - 1] < low_ns:
            continue
        rows = index.wide(lane, low_ns, high_ns, least)
        if len(rows):
            boxes.append((place, rows))
        cells.append((np.array(place), *_cells(index, lane, edges)))
    return _packed(index, (low_ns, high_ns, columns), lanes, cells, boxes)


def edges_of(low_ns: int, high_ns: int, columns: int) -> npt.NDArray[np.int64]:
    """Where pixels begin, and behind them where the last one ends: shape (columns + 1,)."""
    edges = low_ns + (np.arange(columns + 1, dtype=np.float64) * (max(high_ns - low_ns, 1) / columns)).astype(np.int64)
    edges[-1] = high_ns
    return np.asarray(edges, np.int64)


def _cells(index: Index, lane: int, edges: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
    """(x, width, category, level) of runs of pixels that look alike; pixels without any event have none."""
    kinds, busy = index.busy(lane, edges)
    total = busy.sum(axis=0)
    category = np.array(kinds or [0])[busy.argmax(axis=0) if len(kinds) > 1 else np.zeros(len(total), np.intp)]
    level = np.minimum(-(-total * LEVELS // np.maximum(np.diff(edges), 1)), LEVELS)
    points = index.instants(lane, int(edges[0]), int(edges[-1]))
    if len(points):  # events that take no time are seen too
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
    box_lane = np.repeat([place for place, _ in boxes], [len(found) for _, found in boxes]) if boxes else rows
    clipped = (-MARGIN_PX, columns + MARGIN_PX)
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "box_event": rows.astype("<u4"),
        "box_low": np.clip((index.start[rows] - low) * scale, *clipped).astype("<f4"),
        "box_high": np.clip((index.end[rows] - low) * scale, *clipped).astype("<f4"),
        "box_name": index.name[rows].astype("<u4"),
        "box_lane": np.asarray(box_lane).astype("<u2"),
        "cell_lane": np.repeat([int(one[0]) for one in cells], [len(one[1]) for one in cells]).astype("<u2"),
    }
    for place, (key, kind) in enumerate((("x", "<u2"), ("width", "<u2"), ("category", "u1"), ("level", "u1")), start=1):
        found = [one[place] for one in cells]
        arrays[f"cell_{key}"] = (np.concatenate(found) if found else np.empty(0)).astype(kind)
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
