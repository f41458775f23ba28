"""The figure of one metric over commits or time, with the changes of its level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.figures.drawing import graph_objects, laid_out

if TYPE_CHECKING:
    import plotly.graph_objects as go

LINE_COLOR, CHANGE_COLOR = "#3f7fd6", "#c94f2d"
SHORT = 12
"""Characters of a commit on the axis."""


def metric_history(series: Mapping[str, Any], links: Sequence[str] = ()) -> go.Figure:
    """A point a run, in the order of the series (a row of `views.history`), dashed where its level changed.

    ``links``: of each point, what a click on it leads to. Values are in the unit of the metric, times in ms.
    """
    points, plotly = series["points"], graph_objects()
    scale = 1e6 if series["unit"] == "ns" else 1
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
    for change in series["changes"]:
        figure.add_vline(
            x=change["index"] - 0.5,
            line={"color": CHANGE_COLOR, "dash": "dash"},
            annotation={"text": change["said"], "yref": "paper", "y": 1, "yanchor": "bottom", "xanchor": "left"},
        )
    every = max(1, len(points) // 8)
    ticks = list(range(0, len(points), every))
    words = [(points[index]["commit"] or points[index]["created"][:10])[:SHORT] for index in ticks]
    figure.update_xaxes(tickvals=ticks, ticktext=words)
    laid_out(figure, title="", x="", y="ms" if series["unit"] == "ns" else series["unit"])
    return figure
