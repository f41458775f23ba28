"""A tile says of each pixel what is there; events that are wide enough are boxes of their own."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from perfscope.dashboards.timeline.index import build
from perfscope.dashboards.timeline.lanes import events_of
from perfscope.dashboards.timeline.palette import Category
from perfscope.dashboards.timeline.tile import tile
from tests.build import TraceBuilder

KINDS = {
    "cell_lane": "<u2", "cell_x": "<u2", "cell_width": "<u2", "cell_category": "u1", "cell_level": "u1",
    "box_event": "<u4", "box_low": "<f4", "box_high": "<f4", "box_lane": "<u2", "box_name": "<u4", "box_category": "u1",
}  # fmt: skip


def _parsed(content: bytes) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    (size,) = struct.unpack_from("<I", content)
    head = json.loads(content[4 : 4 + size])
    arrays = {}
    for key, kind in KINDS.items():
        offset, length = head["arrays"][key]
        assert (4 + size + offset) % 4 == 0
        arrays[key] = np.frombuffer(content, kind, length, 4 + size + offset).tolist()
    return head, arrays


def _index(*kernels: tuple[float, float]):
    made = TraceBuilder()
    for start, end in kernels:
        made.kernel("gemm", start, end)
    return build(events_of(made.build()))


def test_wide_events_are_boxes_where_they_are() -> None:
    head, found = _parsed(tile(_index((10, 30), (50, 51)), 0, 100_000, 100, [0]))
    assert head["columns"] == 100
    assert found["box_low"] == [10.0]
    assert found["box_high"] == [30.0]
    assert found["box_category"] == [Category.MATRIX]


def test_narrow_events_are_cells_as_full_as_they_are() -> None:
    _, found = _parsed(tile(_index((50, 50.5)), 0, 100_000, 100, [0]))
    assert found["box_low"] == []
    assert (found["cell_x"], found["cell_width"], found["cell_level"]) == ([50], [1], [8])


def test_what_is_cut_reaches_beyond_the_tile() -> None:
    _, found = _parsed(tile(_index((0, 1000)), 400_000, 500_000, 100, [0]))
    assert found["box_low"][0] < 0
    assert found["box_high"][0] > 100
    assert (found["cell_x"], found["cell_width"], found["cell_level"]) == ([0], [100], [16])


def test_an_event_without_duration_is_seen() -> None:
    made = TraceBuilder()
    made.annotation("mark", 42, 42)
    _, found = _parsed(tile(build(events_of(made.build())), 0, 100_000, 100, [0]))
    assert (found["cell_x"], found["cell_level"]) == ([42], [1])


def test_pixels_below_a_nanosecond() -> None:
    """Deeper than the clock: edges coincide, and nothing is divided by zero."""
    _, found = _parsed(tile(_index((0, 1)), 500, 510, 100, [0]))
    assert len(found["box_event"]) == 1
