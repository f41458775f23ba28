"""Findings with evidence and advice, what to look for in the timeline, what could not look, and what is clean."""

from __future__ import annotations

from typing import Any

from perfscope.analyzers.finding import Finding
from perfscope.analyzers.trace import Trace
from perfscope.analyzers.units import format_ns
from perfscope.dashboards.reports.html_findings import finding_card
from perfscope.dashboards.reports.html_report import not_flagged
from perfscope.dashboards.reports.summary import FindingRow, summarize
from perfscope.dashboards.timeline.marks import numbers, ordered
from perfscope.dashboards.views import Job, Place

MOST_PIECES = 6
"""Of a finding, that it links to; the timeline itself has all that the rule names."""
MOST_NAMES = 4
"""Of a finding, that the timeline is asked for: a chain of more is recognised by its first."""


def gather(trace: Trace, place: Place) -> None:
    """Nothing of a trace but its number, which links into the timeline name."""


def view(job: Job) -> dict[str, Any]:
    """``findings``: a card each, ``at``: pieces of the timeline, ``find``: names; ``after``: cards of all other rules.

    A piece has ``mark`` for the address of the timeline, and what it is in words (``said``).
    """
    summary, known = summarize(job.analysis), numbers(job.analysis.sources, job.gathered)
    rows = [
        {
            "rule": row.rule,
            "html": finding_card(row, opened=at == 0),
            "at": _pieces(job, finding, known),
            "find": _names(row),
        }
        for at, (row, finding) in enumerate(ordered(job))
    ]
    return {
        "findings": rows,
        "left": len(summary.findings) - len(rows),
        "after": "".join(not_flagged(summary)),
    }


def _pieces(job: Job, finding: Finding, known: dict[int, int]) -> list[dict[str, str]]:
    starts, sources = job.analysis.starts_ns, job.analysis.sources
    found = []
    for span in [one for one in finding.spans if one.source in known][:MOST_PIECES]:
        rank = sources[span.source].rank
        since = format_ns(span.start_ns - starts[span.source])
        said = f"{format_ns(span.end_ns - span.start_ns)}, {since} behind the start"
        whose = "" if len(sources) == 1 or rank is None else f" of rank {rank}"
        found.append({"mark": f"{known[span.source]}:{span.start_ns}-{span.end_ns}", "said": said + whose})
    return found


def _names(row: FindingRow) -> list[str]:
    """Kernels and ops that the finding, or its evidence, names."""
    found = [name for what, name in row.place if what in ("kernel", "op")]
    for cells in row.evidence:
        found += [str(cells[key]) for key in ("kernel", "op") if cells.get(key)]
    return list(dict.fromkeys(found))[:MOST_NAMES]
