"""What the page of a history shows: a card a program and machine, and the pictures of its metrics with their tables.

It is made of a run store, so it is none of ``VIEWS``, which are made of the traces of one item.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.dashboards.report.history import metric_html, moved_html, programs
from perfscope.model.untrusted_text import sanitize

if TYPE_CHECKING:
    from perfscope.analyzers.compare.statistics.series import History, Series
    from perfscope.dashboards.report.history import CountBetween

MOST_PROGRAMS = 40
MOST_SERIES = 400
"""Of all programs together, the first of each: a picture with its table has up to 40 KiB."""


def view_of(found: History, *, count_between: CountBetween | None = None) -> dict[str, Any]:
    """``programs``, what ran last first: its changes and its series as HTML (texts escaped); and all ``metrics``.

    ``plain``: of a series, whether it is shown unasked: a time, or one that changed.
    """
    left, drawn = MOST_SERIES, []
    held = programs(found)
    for program in held[:MOST_PROGRAMS]:
        series = [_series(one) for one in program.series[: max(left, 0)]]
        left -= len(series)
        drawn.append(
            {
                "title": program.title,
                "runs": program.runs,
                "moved": "".join(moved_html(one) for one in program.moved(count_between)),
                "series": series,
                "left": len(program.series) - len(series),
            }
        )
    lines = (*(f"left out: {one}" for one in found.left_out), *found.notes)
    return {
        "runs": found.runs,
        "programs": drawn,
        "programs_left": max(0, len(held) - MOST_PROGRAMS),
        "metrics": sorted({sanitize(one.metric) for one in found.series}),
        "changed": sum(bool(one.changes) for one in found.series),
        "notes": [sanitize(line, 400) for line in lines],
    }


def _series(one: Series) -> dict[str, Any]:
    return {
        "metric": sanitize(one.metric),
        "plain": bool(one.changes) or one.known != "exact",
        "html": metric_html(one),
    }
