"""Figures of device time: by device, by kernel, and as lanes over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfscope.dashboards.figures.drawing import (
    LABEL_LIMIT,
    MS,
    graph_objects,
    laid_out,
    plain,
)
from perfscope.dashboards.report.charts import PARTS
from perfscope.dashboards.report.sections.devices import fold_devices
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from perfscope.analyzers.time import DeviceTime
    from perfscope.model.trace import Trace

MOST_SPANS = 5_000
"""Most bars that plotly still pans smoothly in a notebook."""


def device_time(devices: Sequence[DeviceTime]) -> go.Figure:
    """One bar per device (``analysis.devices``): compute, exposed communication and copies, idle; in ms.

    With many devices, similar ones share a bar, as in the reports.
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


def kernel_time(trace: Trace, top: int = 20) -> go.Figure:
    """The ``top`` kernels by summed time in ms, and the rest as one bar. ``ValueError`` unless ``top`` > 0.

    Times of parallel streams are added, so the bars may sum to more than the device's busy time.
    """
    if top < 1:
        raise ValueError(f"top is {top}; it must be at least 1")
    plotly = graph_objects()
    kernels = trace.rows["kernels"]
    names, inverse, counts = np.unique(kernels["name"], return_inverse=True, return_counts=True)
    totals = np.zeros(len(names), np.int64)
    np.add.at(totals, inverse, kernels["end_ns"] - kernels["start_ns"])
    order = np.argsort(-totals, kind="stable")
    shown_rows, rest = order[:top], order[top:]
    labels = [sanitize(trace.text(int(names[row])), LABEL_LIMIT) or "(no name)" for row in shown_rows]
    times, calls = [int(totals[row]) for row in shown_rows], [int(counts[row]) for row in shown_rows]
    if len(rest):
        labels.append(f"{len(rest):,} other kernels")
        times.append(int(totals[rest].sum()))
        calls.append(int(counts[rest].sum()))
    figure = plotly.Figure()
    figure.add_bar(
        y=[f"{index + 1}. {plain(label)}" for index, label in enumerate(labels)],
        x=[time / MS for time in times],
        customdata=calls,
        hovertemplate="%{y}<br>%{x:.3f} ms in %{customdata} launches<extra></extra>",
        orientation="h",
        marker={"color": PARTS[0][2]},
    )
    figure.update_layout(yaxis={"autorange": "reversed"})
    return laid_out(figure, title="Kernel time", x="ms, summed over streams", rows=len(labels))


def timeline(
    trace: Trace, start_ns: int | None = None, end_ns: int | None = None, limit: int = MOST_SPANS
) -> go.Figure:
    """Kernels and copies that touch ``[start_ns, end_ns)``, one lane per stream, in ms from the window's start.

    Above ``limit`` only the longest are drawn, and the title has the total number. The window is on the trace's clock;
    by default it covers everything.
    """
    plotly = graph_objects()
    first, last = trace.span_ns()
    begin, finish = (first if start_ns is None else start_ns), (last if end_ns is None else end_ns)
    figure = plotly.Figure()
    parts = {"kernels": PARTS[0], "communication": PARTS[1], "copies": PARTS[2]}
    chosen = _longest_spans(trace, begin, finish, limit)
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


def _longest_spans(trace: Trace, begin: int, finish: int, limit: int) -> dict[str, tuple[int, np.ndarray]]:
    """(number in the window, rows of the longest) by kind, with ``limit`` rows over all kinds."""
    result: dict[str, np.ndarray] = {}
    for kind in ("kernels", "communication", "copies"):
        table = trace.rows["copies" if kind == "copies" else "kernels"]
        inside = (table["end_ns"] > begin) & (table["start_ns"] < finish)
        if kind != "copies":
            inside &= table["communication"] == (kind == "communication")
        result[kind] = np.flatnonzero(inside)
    durations = {
        kind: (table["end_ns"] - table["start_ns"])[rows]
        for kind, rows in result.items()
        for table in (trace.rows["copies" if kind == "copies" else "kernels"],)
    }
    everything = np.concatenate(list(durations.values()))
    if len(everything) > limit:
        kept = np.argsort(-everything, kind="stable")[:limit]
        keep = np.zeros(len(everything), bool)
        keep[kept] = True
        parts = np.split(keep, np.cumsum([len(rows) for rows in result.values()])[:-1])
        return {kind: (len(rows), rows[part]) for (kind, rows), part in zip(result.items(), parts, strict=True)}
    return {kind: (len(rows), rows) for kind, rows in result.items()}


def _lane(trace: Trace, device: int, stream: int) -> str:
    return f"device {int(trace.rows['devices']['ordinal'][device])} · stream {stream}"
