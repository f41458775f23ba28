"""The roofline: achieved rates and the device's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from perfscope.dashboards.figures.drawing import (
    MARK,
    graph_objects,
    laid_out,
    plain,
)
from perfscope.model.units import format_count, format_ns, format_share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import plotly.graph_objects as go


BOUNDS = {
    "compute": ("arithmetic", "#4a86e0"),
    "memory": ("memory", "#c8731d"),
    "link": ("links", "#8f63d4"),
    "": ("no roof known", "#4f8a66"),
}
"""Limit of a point -> words and colour."""
LEAST_DISC, MOST_DISC = 6, 46
"""Diameter of the shortest and of the longest point, pixels."""
LEAST_INTENSITY = 1e-3
"""Smallest intensity drawn, FLOPs per byte. Below it an op only moves data, and only the memory roof is near."""

LABEL_PX, LETTER = 11, 0.58
"""Font size, and mean width of a letter, of the roofs' names right of the picture, where no disc is."""
MOST_LABELS, LEAST_LABELLED = 6, 0.01
"""Most points with a label, longest first and one of each name, and the share of time from which a point has one."""
NAME_CHARS = 18
"""Characters of a name in a label, so that it fits into the picture on a phone."""
AXIS_PX = 40
"""Room left of the picture for the marks of its axis."""
NARROW_PX, HEIGHT_PX, ROW_PX = 170, 360, 14
"""Size of the picture on a phone: labels that do not overlap there do not overlap on a wider page. Height of a label.
"""


def roofline(
    points: Sequence[Mapping[str, Any]], devices: Sequence[Mapping[str, Any]], chosen: str | None = None
) -> go.Figure:
    """FLOP/s by FLOPs per byte on logarithmic axes: one disc per point, sized by time, and the devices' roofs.

    ``points``: each with ``name``, ``line``, ``time_ns``, ``share``, ``basis``, ``rate`` (FLOP/s), ``intensity``
    (FLOP/byte), ``of_roof`` and ``bound`` (of `BOUNDS`); points without a rate are left out. ``devices``: each with
    ``bandwidth`` (bytes/s) and ``peaks`` (``label``, ``flops``). ``chosen``: name of the points to mark. The custom
    data of a point is its name. The points with most time have a label: name and share of the roof.
    """
    figure = graph_objects().Figure()
    drawn = [point for point in points if (point["rate"] or 0) > 0 and (point["intensity"] or 0) >= LEAST_INTENSITY]
    drawn.sort(key=lambda point: -point["time_ns"])  # so that small discs are drawn over large ones
    longest = max((point["time_ns"] for point in drawn), default=1)
    for device in devices:
        ridges = [(peak["flops"] / device["bandwidth"], peak) for peak in device["peaks"]]
        left = min((point["intensity"] for point in drawn), default=1) / 3
        right = 3 * max([left, *(ridge for ridge, _ in ridges), *(point["intensity"] for point in drawn)])
        lines: list[tuple[float | None, float | None]] = []
        for ridge, peak in ridges:
            start = left if peak is ridges[-1][1] else ridge
            lines += [(start, min(start * device["bandwidth"], peak["flops"])), (ridge, peak["flops"])]
            lines += [(right, peak["flops"]), (None, None)]
            figure.add_annotation(
                text=_roof_label(peak), x=1, xref="paper", y=np.log10(peak["flops"]), showarrow=False, xanchor="left",
                font={"size": LABEL_PX},
            )  # fmt: skip
        figure.add_scatter(
            name=f"roofs of {plain(device['name'])}", x=[x for x, _ in lines], y=[y for _, y in lines], mode="lines",
            line={"color": MARK, "width": 1.5}, hoverinfo="skip")  # fmt: skip
    for bound, (title, color) in BOUNDS.items():
        members = [point for point in drawn if (point["bound"] if point["bound"] in BOUNDS else "") == bound]
        if members:
            figure.add_scatter(
                name=title, x=[point["intensity"] for point in members], y=[point["rate"] for point in members],
                mode="markers", customdata=[point["name"] for point in members],
                text=[_point_words(point) for point in members], hovertemplate="%{text}<extra></extra>",
                marker={
                    "color": color, "opacity": 0.6,
                    "size": [_disc(point, longest) for point in members],
                    "line": {"color": MARK, "width": [4 if point["name"] == chosen else 0.7 for point in members]},
                },
            )  # fmt: skip
    for axis in ("x", "y"):
        marks = _round_marks([value for trace in figure.data for value in trace[axis] if value] or [1.0])
        texts = [
            f"{mark:g}" if axis == "x" else format_count(mark).replace(".00", "").replace(".0", "") for mark in marks
        ]
        figure.update_layout({f"{axis}axis": {"type": "log", "tickvals": marks, "ticktext": texts}})
    labels = [len(_roof_label(peak)) for device in devices for peak in device["peaks"]]
    margin = {"t": 40, "r": 10 + round(LETTER * LABEL_PX * max(labels, default=0))}
    _label_points(figure, drawn, longest, right_px=margin["r"])
    laid_out(figure, title="", x="FLOPs per byte of device memory", y="FLOP/s")
    return figure.update_layout(height=460, margin=margin, legend={"itemsizing": "constant"})


def _disc(point: Mapping[str, Any], longest: float) -> float:
    """Diameter of a point, pixels: its area is its time."""
    return float(max(LEAST_DISC, MOST_DISC * (point["time_ns"] / longest) ** 0.5))


def _label_points(figure: go.Figure, drawn: Sequence[Mapping[str, Any]], longest: float, right_px: int) -> None:
    """Write the labels of the points with most time at the first free height above or below each.

    ``drawn``: longest first; ``right_px``: room right of the picture.
    """
    first = {point["name"]: point for point in reversed(drawn) if point["share"] >= LEAST_LABELLED}
    named = sorted(first.values(), key=lambda point: -point["time_ns"])[:MOST_LABELS]
    edges = {axis: [value for trace in figure.data for value in trace[axis] if value] for axis in ("x", "y")}
    low, high = ({axis: np.log10(least(values)) for axis, values in edges.items() if values} for least in (min, max))
    taken: list[tuple[float, float, float]] = []
    for point in named:
        x, y = (
            (np.log10(point[key]) - low[axis]) / max(high[axis] - low[axis], 1e-9) * size
            for key, axis, size in (("intensity", "x", NARROW_PX), ("rate", "y", HEIGHT_PX))
        )
        text = _label(point)
        wide, right, reach = (
            LETTER * LABEL_PX * len(text),
            NARROW_PX - x + right_px > x + AXIS_PX,
            _disc(point, longest) / 2 + ROW_PX / 2,
        )
        begin = x if right else x - wide
        offsets = [sign * (reach + row * ROW_PX) for row in range(2 * MOST_LABELS) for sign in (1, -1)]
        clash = [other for start, end, other in taken if begin < end and start < begin + wide]
        free = (up for up in offsets if all(abs(y + up - other) >= ROW_PX for other in clash))
        up = next(free, offsets[-1])
        taken.append((begin, begin + wide, y + up))
        figure.add_annotation(
            text=text, x=np.log10(point["intensity"]), y=np.log10(point["rate"]), ax=0, ay=-up, showarrow=True,
            arrowhead=0, arrowwidth=0.8, arrowcolor=MARK, standoff=0, xanchor="left" if right else "right",
            font={"size": LABEL_PX},
        )  # fmt: skip


def _label(point: Mapping[str, Any]) -> str:
    """``mm 64.4%``: the name without its namespace, and the share of its roof."""
    name = plain(point["name"].rpartition("::")[2].lstrip("_"))
    name = name if len(name) <= NAME_CHARS else f"{name[: NAME_CHARS - 1]}…"
    return name if point["of_roof"] is None else f"{name} {format_share(point['of_roof'], 1)}"


def _roof_label(peak: Mapping[str, Any]) -> str:
    """``bf16, fp16 989 T``."""
    label = plain(peak["label"]).replace("bfloat", "bf").replace("float", "fp")
    return f"{label} {format_count(peak['flops'])}"


def _round_marks(values: Sequence[float]) -> list[float]:
    """Tick marks of a logarithmic axis: powers of ten; if there are few, also their double and half."""
    powers = range(int(np.log10(min(values)) // 1) - 1, int(np.log10(max(values)) // 1) + 2)
    return [float(f"{step}e{power}") for power in powers for step in ((1, 2, 5) if len(powers) < 7 else (1,))]


def _point_words(point: Mapping[str, Any]) -> str:
    share = format_share(point["share"], 1)
    roof = [] if point["of_roof"] is None else [f"{format_share(point['of_roof'], 1)} of its roof"]
    rate = f"{format_count(point['rate'])}FLOP/s at {point['intensity']:.3g} FLOP/byte"
    lines = [point["name"], f"{format_ns(point['time_ns'])} ({share}), {point['basis']}", rate, *roof, point["line"]]
    return "<br>".join(plain(line) for line in lines if line)
