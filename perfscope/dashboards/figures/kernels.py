"""Which kernels take the time of the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfscope.dashboards.figures.drawing import LABEL_LIMIT, MS, graph_objects, laid_out, plain
from perfscope.dashboards.report.svg import PARTS
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from perfscope.model.trace import Trace


def kernel_time(trace: Trace, top: int = 20) -> go.Figure:
    """The ``top`` kernels by summed time in ms, and the rest as one bar. ``ValueError`` unless ``top`` > 0.

    Sums count parallel streams side by side, so together they may exceed the time the device was busy.
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
