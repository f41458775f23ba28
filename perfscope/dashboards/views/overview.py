"""The first page: how long a step is, where it goes, what to do first, and what nobody looked at."""

from __future__ import annotations

from typing import Any

from perfscope.dashboards.reports.html_report import overview_cards
from perfscope.dashboards.reports.summary import summarize
from perfscope.dashboards.views import Job


def view(job: Job) -> dict[str, Any]:
    """``before`` and ``after``: cards as HTML; ``first``: the findings that stand between them, one a row."""
    summary = summarize(job.analysis)
    before, after = overview_cards(summary, job.analysis)
    return {
        "before": before,
        "after": after,
        "first": [
            {
                "rule": row.rule,
                "title": row.title + row.on_ranks,
                "gain": row.gain,
                "share": row.share,
                "where": row.where,
                "known_by": row.known_by,
                "severity": row.severity,
            }
            for row in summary.findings[:MOST_FIRST]
        ],
        "findings": len(summary.findings),
    }


MOST_FIRST = 5
"""Findings on the first page; all of them have a page of their own."""
