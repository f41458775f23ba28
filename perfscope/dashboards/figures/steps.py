"""Figures of steps: the account of each step, and the step times of each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from perfscope.analyzers.savings import FEW_STEPS
from perfscope.dashboards.figures.drawing import (
    LABEL_LIMIT,
    MARK,
    MS,
    graph_objects,
    laid_out,
    plain,
)
from perfscope.dashboards.report.charts import CAUSE_COLORS, FREE_COLOR, TRACED_COLOR
from perfscope.dashboards.report.renderers.values import signed_ns
from perfscope.model.documents.causes import LEAST_SHARE, cause_words
from perfscope.model.trace import MISSING
from perfscope.model.units import format_ns, format_share
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

    import plotly.graph_objects as go

    from perfscope.analyzers.engine import Step
    from perfscope.analyzers.time import StepAccount
    from perfscope.model.documents.causes import Cause
    from perfscope.model.documents.comparison import Account

FEW_BARS = 6
"""Fewer bars leave room at their sides: a bar as wide as the figure looks like an area."""
MOST_STEP_BARS = 300
"""Most bars of an account: more are too narrow to distinguish. Beyond it each device has one bar."""


SIDES_PX, ROW_PX, BETWEEN_PX, AROUND_PX = 100, 36, 80, 220
"""Layout of the comparison of two accounts: its bars, a row per cause, the space between, the title with the legend."""

MOST_SYMBOLS = 40
"""Number of markers that plotly distinguishes; with more ranks some share a marker."""


def step_account(accounts: Sequence[StepAccount], links: Sequence[Sequence[str]] = ()) -> go.Figure:
    """One bar per step (``analysis.accounts``), stacked by cause, in ms; the causes sum to the step exactly.

    Devices and ranks are side by side. With more than ``MOST_STEP_BARS`` steps in all, a bar is the mean step of a
    device.
    ``links``: for each account one address per step, kept as the ``customdata`` of its bars.
    """
    plotly = graph_objects()
    shown = [account for account in accounts if account.whole_ns]
    on_host = all(account.device == MISSING for account in shown)
    means = len(shown) > 1 and sum(max(1, len(account.numbers)) for account in shown) > MOST_STEP_BARS
    outer, inner, data = [], [], []
    for index, account in enumerate(shown):
        where = list(links[index]) if index < len(links) else []
        numbers = [f"step {number}" for number in account.numbers] or ["capture"]
        kept = ["mean step"] if means else numbers[:MOST_STEP_BARS]
        outer += [plain(_account_label(account, shown))] * len(kept)
        inner += kept
        data += (where + [""] * len(kept))[: len(kept)]
    one_each = len(inner) == len(shown)
    axis: Any = inner if len(shown) == 1 else outer if one_each else [outer, inner]
    figure = plotly.Figure()
    for cause, color in CAUSE_COLORS.items():
        values = [item for account in shown for item in _bars_of(account, cast("Cause", cause), means=means)]
        if any(values):
            whole = [item for account in shown for item in _wholes_of(account, means=means)]
            words = cause_words(cast("Cause", cause), on_host=on_host)
            text = [
                f"{words}: {format_ns(value)} ({format_share(value, total)})"
                for value, total in zip(values, whole, strict=True)
            ]
            figure.add_bar(
                name=f"{words} {format_share(sum(values), sum(whole))}", x=axis,
                y=[value / MS for value in values], customdata=data, hovertext=text,
                hovertemplate="%{x}<br>%{hovertext}<extra></extra>", marker={"color": color},
                showlegend=sum(values) >= LEAST_SHARE * sum(whole),
            )  # fmt: skip
    figure.update_layout(barmode="stack", bargap=max(0.12, 1 - len(inner) / FEW_BARS))
    title = "Mean step by cause" if means else "Steps by cause"
    return laid_out(figure, title=title, x="", y="ms")


def account_change(account: Account) -> go.Figure:
    """The mean step of both sides as two bars stacked by cause, and the change of each cause, in ms.

    ``account``: from a comparison's document. The causes sum to the bars, their changes to the change of the step.
    """
    plotly = graph_objects()
    order = [*CAUSE_COLORS, *(cause for cause in account.causes if cause not in CAUSE_COLORS)]
    wholes = {"head": account.head_ns, "base": account.base_ns}
    causes = [
        (cause, amount)
        for cause in order
        if (amount := account.causes.get(cause)) is not None
        and max(amount.base_ns, amount.head_ns) >= LEAST_SHARE * max(wholes.values())
    ]
    heights = [SIDES_PX, ROW_PX * max(len(causes), 1)]
    figure = plotly.Figure()
    figure.set_subplots(rows=2, cols=1, row_heights=heights, vertical_spacing=BETWEEN_PX / (sum(heights) + BETWEEN_PX))
    for cause, amount in causes:
        words = plain(cause_words(cause, on_host=account.on_host))
        color = CAUSE_COLORS.get(cause, MARK)
        sides = {"head": amount.head_ns, "base": amount.base_ns}
        text = [f"{words}: {format_ns(ns)} ({format_share(ns, wholes[side])})" for side, ns in sides.items()]
        figure.add_bar(
            name=words, x=[ns / MS for ns in sides.values()], y=list(sides), orientation="h", hovertext=text,
            hovertemplate="%{y}<br>%{hovertext}<extra></extra>", marker={"color": color}, row=1, col=1,
        )  # fmt: skip
        delta = amount.head_ns - amount.base_ns
        figure.add_bar(
            name=words, x=[delta / MS], y=[words], orientation="h", showlegend=False, width=0.34, hoverinfo="skip",
            marker={"color": color}, row=2, col=1,
        )  # fmt: skip
        figure.add_annotation(  # above its bar: a phone has no room at its end
            text=f"{words} <b>{signed_ns(delta)}</b>", x=0, xref="x2 domain", xanchor="left", y=words, yref="y2",
            yshift=ROW_PX * 0.36, showarrow=False, font={"size": 11},
        )  # fmt: skip
    figure.update_xaxes(zeroline=True, zerolinecolor=MARK, row=2, col=1)
    figure.update_yaxes(autorange="reversed", showticklabels=False, row=2, col=1)
    figure.update_layout(barmode="stack", bargap=0.25)
    laid_out(figure, title="Mean step by cause, base and head", x="ms")
    figure.update_layout(height=sum(heights) + BETWEEN_PX + AROUND_PX, xaxis2={"title": {"text": "ms, head less base"}})
    return figure


def _account_label(account: StepAccount, accounts: Sequence[StepAccount]) -> str:
    """The rank; the device if the rank has several or is unknown."""
    alone = account.rank is not None and sum(other.rank == account.rank for other in accounts) == 1
    device = "" if account.device == MISSING or alone else f"device {account.ordinal}"
    rank = "" if account.rank is None else f"rank {account.rank}"
    return sanitize(" ".join(filter(None, (rank, device))) or "host", LABEL_LIMIT)


def _bars_of(account: StepAccount, cause: Cause, *, means: bool) -> list[int]:
    values = list(account.causes_ns.get(cause, ())) or [0] * max(1, len(account.numbers))
    return [sum(values) // len(values)] if means else values[:MOST_STEP_BARS]


def _wholes_of(account: StepAccount, *, means: bool) -> list[int]:
    values = [sum(step) for step in zip(*account.causes_ns.values(), strict=True)]
    return [sum(values) // len(values)] if means else values[:MOST_STEP_BARS]


def step_times(steps: Sequence[Step]) -> go.Figure:
    """Step time (``analysis.steps``) in ms by step number; colour by kind, symbol by rank."""
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
