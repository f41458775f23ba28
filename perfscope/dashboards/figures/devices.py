"""Where the time of each device went, as stacked bars that sum to its span."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.figures.drawing import MS, graph_objects, laid_out, plain
from perfscope.dashboards.report.hot_rows import fold_devices
from perfscope.dashboards.report.svg import PARTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from perfscope.analyzers.time import DeviceTime


def device_time(devices: Sequence[DeviceTime]) -> go.Figure:
    """A bar a device (``analysis.devices``): compute, exposed communication and copies, idle; in ms.

    Where there are many devices those that are alike share a bar, as in the reports.
    """
    plotly = graph_objects()
    rows = fold_devices(devices)
    labels = [plain(row.device if row.ranks == "-" else f"rank {row.ranks} · {row.device}") for row in rows]
    figure = plotly.Figure()
    for name, attribute, color in PARTS:
        times = [getattr(row, attribute) / MS for row in rows]
        figure.add_bar(name=name, y=labels, x=times, orientation="h", marker={"color": color})
    figure.update_layout(barmode="stack", yaxis={"autorange": "reversed"})
    return laid_out(figure, title="Device time", x="ms", rows=len(rows))
