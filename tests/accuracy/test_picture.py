"""The picture of a defect and its twin: both at one time scale, the innermost work of each thread, findings marked."""

from __future__ import annotations

import re

from perfscope.analyzers.engine import analyze
from perfscope.dashboards.web.timeline.lanes import COLORS, Category
from tests.accuracy.picture import MARKED, WIDE, Strip, strip_of, svg
from tests.build import TraceBuilder

PYTHON, MATRIX = COLORS["light"][Category.PYTHON], COLORS["light"][Category.MATRIX]


def strip(length: float) -> Strip:
    """Two steps of Python, whose last quarter is a product; the second step is twice as long."""
    builder = TraceBuilder()
    for number, (start, end) in enumerate(((0.0, length), (length, 3 * length)), start=1):
        builder.step(number, start, end)
        builder.python("train.py(3): train", start, end)
        builder.op("aten::mm", start + 0.75 * (end - start), end)
    trace = builder.build()
    found = strip_of((trace,), analyze(trace, ["host_bound"]), ())
    assert found is not None
    return found


def drawn(picture: str, color: str) -> list[int]:
    """Columns of each path of a colour, from top to bottom."""
    paths = re.findall(rf'stroke="{color}" stroke-width="\d+" d="([^"]*)"', picture)
    return [sum(map(int, re.findall(r"h(\d+)", path))) for path in paths]


def test_the_shortest_step_of_both_is_drawn_at_one_scale() -> None:
    picture = svg(strip(1000.0), strip(500.0))
    assert drawn(picture, MATRIX) == [WIDE // 4, WIDE // 8]
    assert drawn(picture, PYTHON) == [WIDE * 3 // 4, WIDE * 3 // 8 + 1]  # the column of both is Python
    assert "with the defect, 1.00 ms" in picture
    assert "its twin, 500 us" in picture
    assert MARKED not in picture
