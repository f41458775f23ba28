"""The first page: how long a step is, where it goes, what to do first, and what was not recorded."""

from __future__ import annotations

from statistics import median
from typing import Any

from perfscope.dashboards.report.html_findings import nothing_found
from perfscope.dashboards.report.html_report import overview_parts
from perfscope.dashboards.report.summary import summarize
from perfscope.dashboards.web.views import Gathered, Job, Place
from perfscope.dashboards.web.views._not_recorded import facts_of, missing
from perfscope.dashboards.web.views._planned import tiles, told_of
from perfscope.dashboards.web.views._utilization import CONFIDENCE, median_interval, utilization_of
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize

MOST_FIRST = 5
"""Findings on the first page; all of them have a page of their own."""


def gather(trace: Trace, place: Place) -> dict[str, Any]:
    """Of one rank: its share of the peak, and what it recorded."""
    used = utilization_of(trace)
    told = None if used is None else {"mfu": used.mfu, "exact": used.exact, "over": used.over, "device": used.device}
    return {**facts_of(trace), "used": told}


def view(job: Job) -> dict[str, Any]:
    """``parts``: HTML by name; ``first``: findings, one a row; ``missing``: what was not recorded, and the command.

    ``nothing``: of no findings, how much that says. ``planned``: that nothing of it ever ran, in a sentence; ``""``
    where something did.
    """
    summary = summarize(job.analysis)
    return {
        "parts": overview_parts(summary, job.analysis, _mfu(job.gathered), first=tiles(job.analysis)),
        "nothing": "" if summary.findings else nothing_found(summary),
        "planned": told_of(job.analysis),
        "interval": _interval(job),
        "missing": missing(job.analysis, (one.held for one in job.gathered)),
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


def _mfu(gathered: Any) -> list[tuple[str, str, str]]:
    """The tile; none where no rank can say. Of several ranks their mean, and the lowest."""
    held: list[Gathered] = [one for one in gathered if one.held["used"] is not None]
    if not held:
        return []
    used = [one.held["used"] for one in held]
    mean = sum(one["mfu"] for one in used) / len(used)
    least = min(held, key=lambda one: one.held["used"]["mfu"])
    at_least = "" if all(one["exact"] for one in used) else ">= "
    over = sanitize(used[0]["over"], 60) if len({one["over"] for one in used}) == 1 else "the programs with most time"
    note = f"of {sanitize(used[0]['device'], 60)} over {over}: FLOPs modelled, time measured"
    if len(held) > 1:
        rank = "" if least.source.rank is None else f" (rank {least.source.rank})"
        note += f"; mean of {len(held)}, lowest {100 * least.held['used']['mfu']:.1f}%{rank}"
    return [("MFU", f"{at_least}{100 * mean:.1f}%", note)]


def _interval(job: Job) -> str:
    """Between what the median step lies, in a sentence; ``''`` where there are too few steps to say."""
    steps = job.analysis.steps
    rank = next((step.rank for step in steps), None)  # ranks of a job wait for each other: one of them is taken
    mine = [step for step in steps if step.rank == rank]
    free = [step.duration_ns for step in mine if not step.traced]
    times = free or [step.duration_ns for step in mine]
    found = median_interval(times)
    if found is None:
        return ""
    how = "without a profiler" if free else "while traced"
    whose = "" if rank is None or len(mine) == len(steps) else f" of rank {rank}"
    return (
        f"Median step {format_ns(median(times))}, {100 * CONFIDENCE:.0f}% interval {format_ns(found[0])} to "
        f"{format_ns(found[1])} ({len(times):,} steps{whose} {how}, by their order, taken as independent)."
    )
