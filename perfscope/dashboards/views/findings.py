"""Findings with evidence and advice, what to look for in the timeline, what could not look, and what is clean."""

from __future__ import annotations

from typing import Any

from perfscope.dashboards.reports.html_findings import finding_card
from perfscope.dashboards.reports.html_report import not_flagged
from perfscope.dashboards.reports.summary import FindingRow, summarize
from perfscope.dashboards.views import Job

MOST_FINDINGS = 300
MOST_NAMES = 4
"""Of a finding, that the timeline is asked for: a chain of more is recognised by its first."""


def view(job: Job) -> dict[str, Any]:
    """``findings``: a card each, and ``find``: names of kernels and ops; ``after``: cards of all other rules."""
    summary = summarize(job.analysis)
    rows = summary.findings[:MOST_FINDINGS]
    return {
        "findings": [
            {"rule": row.rule, "html": finding_card(row, opened=at == 0), "find": _names(row)}
            for at, row in enumerate(rows)
        ],
        "left": len(summary.findings) - len(rows),
        "after": "".join(not_flagged(summary)),
    }


def _names(row: FindingRow) -> list[str]:
    """Kernels and ops that the finding, or its evidence, names."""
    found = [name for what, name in row.place if what in ("kernel", "op")]
    for cells in row.evidence:
        found += [str(cells[key]) for key in ("kernel", "op") if cells.get(key)]
    return list(dict.fromkeys(found))[:MOST_NAMES]
