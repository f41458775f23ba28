"""The figure of a job over time: ranks by cause, and its events above."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from perfscope.dashboards.figures.drawing import graph_objects, laid_out
from perfscope.plugins.job.dashboard.view import CAUSE_COLORS, STRIPS

if TYPE_CHECKING:
    import plotly.graph_objects as go

HIGH_PX, STRIP_PX = 300, 22
MARKS = {
    "step time changed": ("diamond", "#e0892b"), "killed": ("x", "#cf4a32"), "stalled": ("square", "#cf4a32"),
    "failed": ("x", "#cf4a32"), "evaluation": ("line-ns-open", "#1f8f74"), "save": ("line-ns-open", "#7f7fbf"),
    "restore": ("triangle-up", "#9465c2"),
}  # fmt: skip
MS = 1_000_000


def job_figure(view: Mapping[str, Any]) -> go.Figure:
    """Stacked bars: mean number of ranks per cause in each bin. A row of marks per kind of event above them."""
    plotly = graph_objects()
    figure = plotly.Figure()
    middles = [_time(part["unix_ns"] + view["width_ns"] // 2) for part in view["bins"]]
    for cause in [cause for cause in CAUSE_COLORS if any(part["ranks"].get(cause) for part in view["bins"])]:
        figure.add_bar(
            x=middles,
            y=[part["ranks"].get(cause, 0) for part in view["bins"]],
            name=cause,
            width=view["width_ns"] / MS,
            marker={"color": CAUSE_COLORS[cause], "line": {"width": 0}},
            hovertemplate=f"%{{x|%m-%d %H:%M:%S}}<br>{cause}: %{{y:.4~g}} ranks<extra></extra>",
        )
    strips = [strip for strip in STRIPS if any(mark["strip"] == strip for mark in view["events"])]
    for strip in strips:
        marks = [mark for mark in view["events"] if mark["strip"] == strip]
        symbol, color = MARKS[strip]
        figure.add_scatter(
            x=[_time(mark["unix_ns"]) for mark in marks],
            y=[strip] * len(marks),
            mode="markers",
            yaxis="y2",
            marker={"symbol": symbol, "color": color, "size": 9, "line": {"width": 2, "color": color}},
            text=[mark["said"] for mark in marks],
            hovertemplate="%{x|%m-%d %H:%M:%S}<br>%{text}<extra></extra>",
            showlegend=False,
            cliponaxis=False,
        )
    laid_out(figure, title="", x="")
    share = HIGH_PX / (HIGH_PX + STRIP_PX * len(strips))
    figure.update_layout(
        barmode="stack",
        bargap=0,
        height=HIGH_PX + STRIP_PX * len(strips) + 20,
        margin={"l": 10, "r": 10, "t": 12, "b": 0},
        xaxis={"title": None, "automargin": True},
        yaxis={"title": {"text": "ranks"}, "domain": [0, share - 0.02 if strips else 1], "automargin": True},
        hovermode="closest",
    )
    if strips:
        figure.update_layout(
            yaxis2={
                "domain": [share, 1], "categoryorder": "array", "categoryarray": strips[::-1], "automargin": True,
                "showgrid": True, "range": [-0.5, len(strips) - 0.5],
            }
        )  # fmt: skip
    return figure


def _time(unix_ns: int) -> str:
    return datetime.fromtimestamp(unix_ns / 1e9, UTC).isoformat(timespec="milliseconds").removesuffix("+00:00")
