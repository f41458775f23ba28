"""What torch.compile did, and the compiled programs of XLA."""

from __future__ import annotations

from typing import Any

from perfscope.dashboards.reports.compile_rows import compile_view
from perfscope.dashboards.reports.html_compile import compile_card
from perfscope.dashboards.reports.html_programs import programs_cards
from perfscope.dashboards.reports.program_rows import programs_view
from perfscope.dashboards.views import Job


def view(job: Job) -> dict[str, Any]:
    """``html``: the cards; ``''`` where nothing was compiled."""
    programs, compiled = programs_view(job.analysis.programs), compile_view(job.analysis.compile)
    cards = [] if programs is None else list(programs_cards(programs))
    if compiled is not None:
        cards.append(compile_card(compiled))
    return {"html": "".join(cards)}
