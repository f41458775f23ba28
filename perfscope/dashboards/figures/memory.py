"""A memory over time: what is in use by category, what is reserved, and the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.analyzers.memory.categories import memory_timelines
from perfscope.analyzers.memory.picture import memory_picture
from perfscope.dashboards.figures.drawing import LABEL_LIMIT, MS, graph_objects, laid_out, plain
from perfscope.dashboards.report.sections.memory_picture import (
    COLORS,
    ORDER,
    RESERVED_COLOR,
    UNSEEN_COLOR,
    category_words,
)
from perfscope.model.errors import UsageError
from perfscope.model.units import format_bytes
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from perfscope.model.memory import MemoryTimeline
    from perfscope.model.trace import Trace

MIB = 1 << 20
"""Bytes of the unit of the axis."""


def memory_timeline(trace: Trace, label: str | None = None) -> go.Figure:
    """Bytes in use by category as stacked areas in MiB: over ms, events or instructions, whatever the memory has.

    ``label``: which memory (``cuda:0``, ``host``, a program's name), the one with the highest peak if left out.
    At most 400 moments; of each part of the axis its highest is among them. ``AskedWronglyError`` if there is none.
    """
    plotly = graph_objects()
    timeline = _chosen(trace, label)
    picture = memory_picture(trace, timeline)
    scale = MS if timeline.axis == "ns" else 1
    x = [(position - timeline.first) / scale for position in (*picture.positions.tolist(), timeline.last + 1)]
    held = dict(zip(picture.categories, picture.bytes.tolist(), strict=True))
    figure = plotly.Figure()

    def add(name: str, values: list[int], color: str) -> None:
        y = [value / MIB for value in (*values, values[-1])]
        figure.add_scatter(
            name=name, x=x, y=y, mode="lines", stackgroup="in use", line={"shape": "hv", "width": 0}, fillcolor=color
        )

    if picture.unseen_bytes:
        add("held before", [picture.unseen_bytes] * len(picture.positions), UNSEEN_COLOR)
    for category in ORDER:
        if any(held.get(category, ())):
            add(category_words(category), held[category], COLORS[category])
    if picture.reserved is not None:
        reserved = [value / MIB for value in (*picture.reserved.tolist(), int(picture.reserved[-1]))]
        figure.add_scatter(
            name="reserved", x=x, y=reserved, mode="lines", line={"shape": "hv", "color": RESERVED_COLOR}
        )
    position, bytes_ = timeline.peak()
    figure.add_scatter(
        name=f"peak {format_bytes(bytes_)}",
        x=[(position - timeline.first) / scale],
        y=[bytes_ / MIB],
        mode="markers",
        marker={"color": "#17202b", "size": 9},
    )
    unit = "ms" if timeline.axis == "ns" else timeline.axis
    title = f"Memory of {plain(sanitize(timeline.label, LABEL_LIMIT))}, {timeline.basis}"
    return laid_out(figure, title=title, x=unit, y="MiB")


def _chosen(trace: Trace, label: str | None) -> MemoryTimeline:
    found = [one for one in trace.fact(memory_timelines) if label is None or one.label == label]
    if not found:
        known = ", ".join(sanitize(one.label) for one in trace.fact(memory_timelines)) or "none"
        raise UsageError(f"no such memory in the trace; it has: {known}")
    return max(found, key=lambda one: one.peak()[1])
