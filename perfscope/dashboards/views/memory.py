"""Each memory: its peak, who holds it, and its picture over time."""

from __future__ import annotations

from typing import Any

from perfscope.dashboards.reports.html_memory import memory_cards
from perfscope.dashboards.reports.memory_rows import memory_view
from perfscope.dashboards.views import Job


def view(job: Job) -> dict[str, Any]:
    """``html``: the cards; ``''`` where no memory is known of."""
    found = memory_view(job.analysis.memory)
    return {"html": "" if found is None else "".join(memory_cards(found))}
