"""Data of the history page: a card per program and machine, and pictures of metrics with their tables.

It is made from a run store; so it is not in ``VIEWS``, which are made from the traces of one item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.blocks import Plot
from perfscope.dashboards.report.renderers.html import blocks_html
from perfscope.dashboards.report.renderers.values import amount_text, percent
from perfscope.model.documents.run_list import SHORT_COMMIT
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.history.report import (
    MOST_PICTURED,
    changes_blocks,
    commit_words,
    grown,
    programs,
    scale,
    series_blocks,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfscope.plugins.history.report import CountBetween
    from perfscope.plugins.history.series import History, Series

MOST_PROGRAMS = 40
MOST_SERIES = 400
"""Most series over all programs, the first ones of each: a picture with its table takes up to 40 KiB."""
SPARK_PX, SPARK_HIGH_PX = 180, 24
"""Width and height of a sparkline."""


def view_of(history: History, *, count_between: CountBetween | None = None) -> dict[str, Any]:
    """``programs``, latest run first: changes and series as HTML (escaped texts); and all ``metrics``.

    ``spark``: the course as SVG, with a mark at each change of level. ``points`` and ``changes``: input of
    `figures.history.metric_history`.
    """
    left, drawn = MOST_SERIES, []
    held = programs(history)
    for program in held[:MOST_PROGRAMS]:
        series = [_series(series) for series in program.series[: max(left, 0)]]
        left -= len(series)
        drawn.append(
            {
                "title": program.title,
                "runs": program.runs,
                "moved": "".join(
                    html for changes in program.moved() for html in blocks_html(changes_blocks(changes, count_between))
                ),
                "series": series,
                "left": len(program.series) - len(series),
            }
        )
    lines = (*(f"left out: {text}" for text in history.left_out), *history.notes)
    return {
        "runs": history.runs,
        "programs": drawn,
        "programs_left": max(0, len(held) - MOST_PROGRAMS),
        "metrics": sorted({sanitize(series.metric) for series in history.series}),
        "changed": sum(bool(series.changes) for series in history.series),
        "notes": [sanitize(line, 400) for line in lines],
    }


def _spark(values: Sequence[float], cuts: Sequence[int]) -> str:
    """The values as a line from the lowest to the highest, with a vertical line before each cut."""
    low, high = scale(values)
    across = SPARK_PX / max(1, len(values) - 1)
    line = " ".join(
        f"{at * across:.1f},{SPARK_HIGH_PX * (1 - (value - low) / ((high - low) or 1)):.1f}"
        for at, value in enumerate(values)
    )
    marks = "".join(
        f'<line x1="{(cut - 0.5) * across:.1f}" x2="{(cut - 0.5) * across:.1f}" y1="-3" y2="{SPARK_HIGH_PX + 3}"/>'
        for cut in cuts
    )
    box = f"-3 -3 {SPARK_PX + 6} {SPARK_HIGH_PX + 6}"
    return f'<svg class="ps-spark" viewBox="{box}" aria-hidden="true">{marks}<polyline points="{line}"/></svg>'


def _series(series: Series) -> dict[str, Any]:
    skipped = max(0, len(series.points) - MOST_PICTURED)
    blocks = tuple(block for block in series_blocks(series) if not isinstance(block, Plot))
    change, points = grown(series), series.points
    cuts = [change.index - skipped for change in series.changes if change.index > skipped]
    return {
        "metric": sanitize(series.metric),
        "runs": len(points),
        "first": amount_text(series.unit, points[0].value),
        "newest": amount_text(series.unit, points[-1].value),
        "change": "" if change is None else percent(change),
        "spark": _spark([point.value for point in points[skipped:]], cuts) if len(points) > 1 else "",
        "unit": sanitize(series.unit),
        "points": [
            {
                "run": sanitize(point.run),
                "commit": commit_words(point) if point.commit else "",
                "created": sanitize(point.created_utc),
                "value": point.value,
                "said": amount_text(series.unit, point.value),
            }
            for point in series.points[skipped:]
        ],
        "changes": [
            {
                "index": change.index - skipped,
                "said": (change.after.commit or "")[:SHORT_COMMIT]
                + ("" if change.change is None else f" {percent(change.change)}"),
            }
            for change in series.changes
            if change.index > skipped
        ],
        "html": "".join(blocks_html(blocks)),
    }
