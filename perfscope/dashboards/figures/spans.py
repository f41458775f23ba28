"""A window of the timeline: what ran on each stream, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfscope.dashboards.figures.drawing import LABEL_LIMIT, MS, graph_objects, laid_out, plain
from perfscope.dashboards.report.svg import PARTS
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from perfscope.model.trace import Trace

MOST_SPANS = 5_000
"""Bars that plotly still pans smoothly in a notebook."""


def timeline(
    trace: Trace, start_ns: int | None = None, end_ns: int | None = None, limit: int = MOST_SPANS
) -> go.Figure:
    """Kernels and copies that touch ``[start_ns, end_ns)``, a lane a stream, in ms from the window's start.

    Of more than ``limit`` the longest are drawn, and the title says how many there are. The window
    is on the trace's clock and spans everything if left out.
    """
    plotly = graph_objects()
    first, last = trace.span_ns()
    begin, finish = (first if start_ns is None else start_ns), (last if end_ns is None else end_ns)
    figure = plotly.Figure()
    parts = {"kernels": PARTS[0], "communication": PARTS[1], "copies": PARTS[2]}
    chosen = _longest(trace, begin, finish, limit)
    total = sum(count for count, _ in chosen.values())
    for kind, (_, rows) in chosen.items():
        table = trace.rows["copies" if kind == "copies" else "kernels"]
        starts, ends = table["start_ns"][rows], table["end_ns"][rows]
        figure.add_bar(
            name=kind,
            base=(starts - begin) / MS,
            x=(ends - starts) / MS,
            y=[_lane(trace, int(table["device"][row]), int(table["stream"][row])) for row in rows],
            customdata=[plain(sanitize(trace.text(int(table["name"][row])), LABEL_LIMIT)) for row in rows],
            hovertemplate="%{customdata}<br>%{x:.4f} ms at %{base:.4f} ms<extra></extra>",
            orientation="h",
            marker={"color": parts[kind][2], "line": {"width": 0}},
        )
    drawn = sum(len(rows) for _, rows in chosen.values())
    title = "Timeline" if drawn == total else f"Timeline: the longest {drawn:,} of {total:,}"
    lanes = {lane for bar in figure.data for lane in bar.y}
    figure.update_layout(barmode="overlay")
    return laid_out(figure, title=title, x="ms", rows=len(lanes))


def _longest(trace: Trace, begin: int, finish: int, limit: int) -> dict[str, tuple[int, np.ndarray]]:
    """(how many touch the window, rows of the longest) by kind, ``limit`` of all kinds together."""
    found: dict[str, np.ndarray] = {}
    for kind in ("kernels", "communication", "copies"):
        table = trace.rows["copies" if kind == "copies" else "kernels"]
        inside = (table["end_ns"] > begin) & (table["start_ns"] < finish)
        if kind != "copies":
            inside &= table["communication"] == (kind == "communication")
        found[kind] = np.flatnonzero(inside)
    durations = {
        kind: (table["end_ns"] - table["start_ns"])[rows]
        for kind, rows in found.items()
        for table in (trace.rows["copies" if kind == "copies" else "kernels"],)
    }
    everything = np.concatenate(list(durations.values()))
    if len(everything) > limit:
        kept = np.argsort(-everything, kind="stable")[:limit]
        keep = np.zeros(len(everything), bool)
        keep[kept] = True
        parts = np.split(keep, np.cumsum([len(rows) for rows in found.values()])[:-1])
        return {kind: (len(rows), rows[part]) for (kind, rows), part in zip(found.items(), parts, strict=True)}
    return {kind: (len(rows), rows) for kind, rows in found.items()}


def _lane(trace: Trace, device: int, stream: int) -> str:
    return f"device {int(trace.rows['devices']['ordinal'][device])} · stream {stream}"
