"""The figure of a metric over commits or time, with the changes of its level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.figures.drawing import byte_unit, graph_objects, laid_out

if TYPE_CHECKING:
    import plotly.graph_objects as go

LINE_COLOR, CHANGE_COLOR = "#3f7fd6", "#c94f2d"
SHORT = 8
"""Characters of a commit on the axis."""
ROW_PX = 13
"""Pixels between the labels of neighbouring changes."""


def metric_history(series: Mapping[str, Any], links: Sequence[str] = ()) -> go.Figure:
    """One point per run, in the order of the series (a row of `views.history`), dashed where its level changed.

    ``links``: for each point, the address that a click opens. Times are in ms, bytes in KiB, MiB and so on.
    """
    points, plotly = series["points"], graph_objects()
    unit, scale = _unit(series)
    values = [point["value"] / scale for point in points]
    figure = plotly.Figure()
    figure.add_scatter(
        x=list(range(len(points))),
        y=values,
        mode="lines+markers",
        line={"color": LINE_COLOR},
        text=["<br>".join(filter(None, (point["run"], point["commit"], point["said"]))) for point in points],
        hovertemplate="%{text}<extra></extra>",
        customdata=list(links) or None,
        showlegend=False,
    )
    for number, change in enumerate(series["changes"]):
        at = change["index"] - 0.5
        side = "left" if at < (len(points) - 1) / 2 else "right"
        figure.add_vline(
            x=at,
            line={"color": CHANGE_COLOR, "dash": "dash"},
            annotation={
                "text": change["said"], "yref": "paper", "y": 1, "yanchor": "bottom", "xanchor": side,
                "yshift": ROW_PX * (number % 2),
            },
        )  # fmt: skip
    every = max(1, len(points) // 8)
    ticks = list(range(0, len(points), every))
    words = [(points[index]["commit"] or points[index]["created"][:10])[:SHORT] for index in ticks]
    figure.update_xaxes(tickvals=ticks, ticktext=words, autotickangles=[0, -30, -90])
    laid_out(figure, title="", x="", y=unit)
    figure.update_yaxes(tickformat=".4~s" if scale == 1 else "")
    return figure


def _unit(series: Mapping[str, Any]) -> tuple[str, float]:
    """Unit of the axis, and its factor to the metric's own unit."""
    if series["unit"] == "bytes":
        return byte_unit(max(point["value"] for point in series["points"]))
    return ("ms", 1e6) if series["unit"] == "ns" else (series["unit"], 1)
