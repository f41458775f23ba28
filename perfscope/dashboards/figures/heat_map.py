"""The heat map of ranks: which wait and which work."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from perfscope.dashboards.figures.drawing import (
    graph_objects,
    laid_out,
    plain,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import plotly.graph_objects as go


WAIT_COLOR, BUSY_COLOR = "200,48,32", "52,120,214"
"""Red for waiting, blue for work; faint for small values; readable on light and dark pages."""
MOST_NAMED = 40
"""Most columns with names below the map."""
MOST_NUMBERS = 10
"""Most columns with a number: as many as fit on a phone."""
SHADES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MOST_ROW_PX, LEAST_MAP_PX, MOST_MAP_PX = 26, 90, 520


def heat_map(heat: Mapping[str, Any], kind: Literal["wait", "busy"]) -> go.Figure:
    """Ranks by collectives (``wait``: time each waited) or by steps (``busy``: share in which its device worked).

    ``heat``: ``rows`` (each with ``label``), ``columns`` (their number), ``labels`` (one per column) and ``value`` (row
    by row, ns or shares; ``None``: no value). Waits span decades, so the colour follows their square root.
    """
    columns, rows = heat["columns"], heat["rows"]
    scale, color = (1e9, WAIT_COLOR) if kind == "wait" else (1, BUSY_COLOR)
    values = [None if value is None else value / scale for value in heat["value"]]
    figure = graph_objects().Figure()
    figure.add_heatmap(
        z=[values[index * columns : (index + 1) * columns] for index in range(len(rows))],
        x=_distinct(heat["labels"]),
        y=_distinct([row["label"] for row in rows]),
        zmin=0,
        zmax=1 if kind == "busy" else None,
        colorscale=[
            (share**2 if kind == "wait" else share, f"rgba({color},{0.06 + 0.94 * share:.2f})") for share in SHADES
        ],
        colorbar={"thickness": 12, "tickformat": ".2~s" if kind == "wait" else ".0%", "outlinewidth": 0}
        | ({"ticksuffix": "s"} if kind == "wait" else {}),
        hovertemplate="%{y}<br>%{x}<br>"
        + ("waited %{z:.3~s}s" if kind == "wait" else "device busy %{z:.1%}")
        + "<extra></extra>",
        hoverongaps=False,
        xgap=1 if columns < 120 else 0,
        ygap=1 if len(rows) < 64 else 0,
    )
    laid_out(figure, title="", x="collectives in order" if kind == "wait" else "")
    figure.update_xaxes(showticklabels=columns <= MOST_NAMED, showgrid=False, type="category")
    if kind == "wait":  # their names are too long for an axis: numbers
        places = range(0, columns, -(-columns // MOST_NUMBERS))
        figure.update_xaxes(tickvals=[*places], ticktext=[f"{index + 1:,}" for index in places], tickangle=0)
    figure.update_yaxes(autorange="reversed", showgrid=False, type="category")
    height = min(max(LEAST_MAP_PX, MOST_ROW_PX * len(rows)), MOST_MAP_PX)
    return figure.update_layout(height=height + 60, margin={"t": 10})


def _distinct(labels: Sequence[str]) -> list[str]:
    """Make labels of a category axis unique: plotly merges equal ones."""
    seen: Counter[str] = Counter()
    result = []
    for label in labels:
        seen[label] += 1
        result.append(plain(label if seen[label] == 1 else f"{label} ({seen[label]})"))
    return result
