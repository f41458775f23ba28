"""Ranks of a job side by side: their collectives, who waited for whom, and bandwidth."""

from __future__ import annotations

from typing import Any

from perfscope.dashboards.reports.collective_rows import collectives_view
from perfscope.dashboards.reports.html_collectives import collectives_cards
from perfscope.dashboards.views import Job


def view(job: Job) -> dict[str, Any]:
    """``html``: the cards; ``''`` where there are no two ranks."""
    found = collectives_view(job.analysis.collectives)
    return {"html": "" if found is None else "".join(collectives_cards(found))}
