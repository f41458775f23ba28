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
from perfscope.plugins.history.report import MOST_PICTURED, changes_blocks, commit_words, programs, series_blocks

if TYPE_CHECKING:
    from perfscope.plugins.history.report import CountBetween
    from perfscope.plugins.history.series import History, Series

MOST_PROGRAMS = 40
MOST_SERIES = 400
"""Most series over all programs, the first ones of each: a picture with its table takes up to 40 KiB."""


def view_of(history: History, *, count_between: CountBetween | None = None) -> dict[str, Any]:
    """``programs``, latest run first: changes and series as HTML (escaped texts); and all ``metrics``.

    ``plain``: whether a series is shown by default: a time, or a metric that changed. ``points`` and ``changes``: input
    of `figures.history.metric_history`.
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


def _series(series: Series) -> dict[str, Any]:
    skipped = max(0, len(series.points) - MOST_PICTURED)
    blocks = tuple(block for block in series_blocks(series) if not isinstance(block, Plot))
    return {
        "metric": sanitize(series.metric),
        "unit": sanitize(series.unit),
        "plain": bool(series.changes) or series.known != "exact",
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
