"""How long the steps took, with and without a profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.figures.drawing import MS, graph_objects, laid_out
from perfscope.dashboards.report.summary import FEW_STEPS
from perfscope.dashboards.report.svg import FREE_COLOR, TRACED_COLOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from perfscope.analyzers.engine import Step

MOST_SYMBOLS = 40
"""Markers that plotly tells apart; of more ranks some share theirs."""


def step_times(steps: Sequence[Step]) -> go.Figure:
    """A point a step (``analysis.steps``) in ms, over its number; one colour a kind and a symbol a rank."""
    plotly = graph_objects()
    figure = plotly.Figure()
    kinds = sorted({(step.traced, -1 if step.rank is None else step.rank) for step in steps})
    for traced, rank in kinds:
        members = [
            step for step in steps if step.traced == traced and (step.rank if step.rank is not None else -1) == rank
        ]
        figure.add_scatter(
            name=("while traced" if traced else "no profiler on") + (f", rank {rank}" if rank >= 0 else ""),
            x=[step.number for step in members],
            y=[step.duration_ns / MS for step in members],
            mode="markers",
            marker={"color": TRACED_COLOR if traced else FREE_COLOR, "symbol": max(rank, 0) % MOST_SYMBOLS, "size": 9},
        )
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(tickformat="d")
    if len({step.number for step in steps}) <= FEW_STEPS:
        figure.update_xaxes(dtick=1)
    return laid_out(figure, title="Step times", x="step", y="ms")
