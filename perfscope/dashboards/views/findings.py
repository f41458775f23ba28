"""Findings with evidence and advice, what could not look, and what is clean."""

from __future__ import annotations

from typing import Any

from perfscope.dashboards.reports.html_report import findings_cards
from perfscope.dashboards.reports.summary import summarize
from perfscope.dashboards.views import Job


def view(job: Job) -> dict[str, Any]:
    """``html``: the cards."""
    return {"html": findings_cards(summarize(job.analysis))}
