"""Figures of memory over time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from perfscope.analyzers.memory import memory_picture, memory_timelines
from perfscope.dashboards.figures.drawing import (
    FAILED,
    LABEL_LIMIT,
    MARK,
    RULE,
    byte_unit,
    graph_objects,
    laid_out,
    plain,
)
from perfscope.dashboards.report.renderers.areas import RESERVED_COLOR
from perfscope.dashboards.report.sections.memory_picture import (
    COLORS,
    ORDER,
    PHASE_COLORS,
    UNSEEN_COLOR,
    category_words,
)
from perfscope.model.errors import UsageError
from perfscope.model.units import format_bytes
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import plotly.graph_objects as go

    from perfscope.model.memory import MemoryTimeline
    from perfscope.model.trace import Trace

NEAR = 1.5
"""The device's size is drawn if the peak comes within this factor of it; otherwise it would flatten all areas."""
MOST_STEP_NAMES = 12
"""Most steps with numbers above the areas: more would overlap."""

MOST_FAILURES = 200
"""Most failed allocations that are marked."""


def memory_timeline(trace: Trace, label: str | None = None) -> go.Figure:
    """The `memory_curve` of a memory of ``trace``, by time, events or instructions, whichever it has.

    ``label``: which memory (``cuda:0``, ``host``, a program's name); by default the one with the highest peak. At most
    400
    points, including the highest of each part of the axis. ``UsageError`` if the memory does not exist.
    """
    timeline = _memory_named(trace, label)
    figure = memory_curve(curve_of(trace, timeline))
    title = f"Memory of {plain(sanitize(timeline.label, LABEL_LIMIT))}, {timeline.basis}"
    return figure.update_layout(title={"text": title}, margin={"t": 110})


def curve_of(trace: Trace, timeline: MemoryTimeline) -> dict[str, Any]:
    """The input of `memory_curve` as plain data. Positions count from ``first``; bytes are valid up to the next one.

    ``first`` is a decimal text, because it may exceed a float. ``areas``: bottom to top; they sum to the bytes in use.
    """
    picture = memory_picture(trace, timeline)
    first = timeline.first
    bytes_of = dict(zip(picture.categories, picture.bytes.tolist(), strict=True))
    areas = [
        {"name": category_words(category), "color": COLORS[category], "bytes": bytes_of[category]}
        for category in ORDER
        if any(bytes_of.get(category, ()))
    ]
    if picture.unseen_bytes:
        before = [picture.unseen_bytes] * len(picture.positions)
        areas.insert(0, {"name": "allocated before", "color": UNSEEN_COLOR, "bytes": before})
    position, peak_bytes = timeline.peak()
    return {
        "axis": timeline.axis,
        "first": str(first),
        "span": timeline.last - first + 1,
        "positions": (picture.positions - first).tolist(),
        "areas": areas,
        "reserved": None if picture.reserved is None else picture.reserved.tolist(),
        "capacity": timeline.capacity_bytes,
        "peak": {"place": int(np.flatnonzero(picture.positions == position)[0]), "bytes": peak_bytes},
        "steps": [{"name": band.name, "start": band.start - first, "end": band.end - first} for band in picture.steps],
        "phases": [
            {"name": band.name, "start": band.start - first, "end": band.end - first} for band in picture.phases
        ],
        "failed": [failure - first for failure in timeline.out_of_memory[:MOST_FAILURES]],
        "unseen": picture.unseen_bytes,
    }


def memory_curve(curve: Mapping[str, Any], at: int | None = None) -> go.Figure:
    """Bytes in use by category as stacked areas, with reserved bytes, the peak, phases and steps.

    ``curve``: from `curve_of`. ``at``: a position to mark. The custom data of a point is its position.
    """
    figure = graph_objects().Figure()
    timed, positions = curve["axis"] == "ns", curve["positions"]
    scale = 1e9 if timed else 1
    x = [position / scale for position in (*positions, curve["span"])]
    highest = max(curve["peak"]["bytes"], *(curve["reserved"] or (0,)))
    unit, size = byte_unit(highest)

    def add(name: str, values: Sequence[int], **options: Any) -> None:
        figure.add_scatter(
            name=name, x=x, y=[value / size for value in (*values, values[-1])], mode="lines",
            customdata=[*positions, positions[-1]], hovertemplate=f"%{{y:.4~g}} {unit}", **options,
        )  # fmt: skip

    for area in curve["areas"]:
        add(area["name"], area["bytes"], stackgroup="in use", line={"shape": "hv", "width": 0}, fillcolor=area["color"])
    if curve["reserved"]:
        add("reserved", curve["reserved"], line={"shape": "hv", "color": RESERVED_COLOR, "width": 1.5})
    peak = curve["peak"]
    top = f"peak {format_bytes(peak['bytes'])}"
    figure.add_scatter(
        name=top, x=[x[peak["place"]]], y=[peak["bytes"] / size], mode="markers", hoverinfo="skip",
        marker={"color": MARK, "size": 9}, customdata=[positions[peak["place"]]],
    )  # fmt: skip
    shapes = [] if at is None else [_vertical(at / scale, color=MARK, width=1.5)]
    shapes += [_vertical(failure / scale, color=FAILED, dash="dash", width=1.5) for failure in curve["failed"]]
    if curve["capacity"] and curve["capacity"] <= NEAR * highest:
        figure.add_hline(
            curve["capacity"] / size, line={"color": FAILED, "dash": "dash", "width": 1.5},
            annotation_text="size of the device",
        )  # fmt: skip
    shapes += [
        {
            "type": "rect", "yref": "paper", "x0": band["start"] / scale, "x1": band["end"] / scale, "y0": 1.01,
            "y1": 1.05, "fillcolor": PHASE_COLORS[band["name"]], "line": {"width": 0},
        }
        for band in curve["phases"]
    ]  # fmt: skip
    for name in dict.fromkeys(band["name"] for band in curve["phases"]):
        figure.add_bar(name=f"{name} (above)", x=[None], y=[None], marker={"color": PHASE_COLORS[name]})
    shapes += [_vertical(band["start"] / scale, color=RULE, dash="dot", width=1) for band in curve["steps"][1:]]
    figure.layout.shapes += tuple(shapes)  # at once: plotly copies all shapes for each one that is added
    for band in curve["steps"] if len(curve["steps"]) <= MOST_STEP_NAMES else ():
        figure.add_annotation(
            text=plain(f"step {band['name']}"), x=band["start"] / scale, y=1.06, yref="paper", showarrow=False,
            xanchor="left", yanchor="bottom",
        )  # fmt: skip
    laid_out(figure, title="", x="" if timed else curve["axis"], y=unit)
    figure.update_xaxes(range=[0, x[-1]], **({"tickformat": "~s", "ticksuffix": "s"} if timed else {}))
    return figure.update_layout(hovermode="x unified", hoverdistance=-1, margin={"t": 60}, legend={"y": 1.14})


def _vertical(x: float, **line: Any) -> dict[str, Any]:
    """A vertical line of full height at ``x``."""
    return {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}


def _memory_named(trace: Trace, label: str | None) -> MemoryTimeline:
    timelines = [timeline for timeline in trace.fact(memory_timelines) if label is None or timeline.label == label]
    if not timelines:
        known = ", ".join(sanitize(timeline.label) for timeline in trace.fact(memory_timelines)) or "none"
        raise UsageError(f"no such memory in the trace; it has: {known}")
    return max(timelines, key=lambda timeline: timeline.peak()[1])
