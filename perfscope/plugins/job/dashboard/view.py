"""Data of the page of jobs, made in a child of the server: bounded, all texts cleaned."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from perfscope.dashboards.report.renderers.html import section_html
from perfscope.dashboards.report.renderers.values import amount_text
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.job.account import JobAccount
from perfscope.plugins.job.dashboard.works import JobWork
from perfscope.plugins.job.rank import Event
from perfscope.plugins.job.rank_sections import clock
from perfscope.plugins.job.recordings import Compared
from perfscope.plugins.job.report import MEANT, report_of, together

MOST_ROWS = 120
"""Most events and processes in a table of the page, the most important first."""
STRIPS = {
    "step time changed": ("step time changed",),
    "killed": ("killed",),
    "stalled": ("stalled",),
    "failed": ("failed save", "failed restore"),
    "evaluation": ("evaluation",),
    "save": ("save",),
    "restore": ("restore",),
}
"""Row of the picture -> kinds of its events."""
_ORDER = {"killed": 0, "stalled": 0, "failed save": 1, "failed restore": 1, "restore": 2}
MOST_NODES = 40
LEAST_EXCESS = 0.01
"""Smaller excesses of a node are not shown."""


def job_view(runs: Sequence[Path], account: JobAccount, recordings: Sequence[Compared]) -> dict[str, Any]:
    """``headline``, ``facts``, the picture (``bins``, ``events``) and the report's sections as HTML."""
    shown = replace(account, events=_worst(account.events), attempts=_shown_attempts(account))
    report = report_of(shown, recordings)
    notable = together([event for event in account.events if event.kind not in ("started", "ended")])
    left = [
        f"{len(held) - MOST_ROWS:,} more {what} are left out of the table: perfscope job --json has them"
        for what, held in (("events", notable), ("processes", account.attempts))
        if len(held) > MOST_ROWS
    ]
    return {
        "kind": "job",
        "headline": sanitize(report.headline),
        "facts": [sanitize(fact, 400) for fact in report.facts],
        "width_ns": account.width_ns,
        "begin_ns": account.begin_unix_ns,
        "bins": [
            {"unix_ns": part.unix_ns, "steps": part.steps, "ranks": _ranks(part.causes, account.width_ns)}
            for part in account.bins
        ],
        "causes": [
            {
                "cause": cause.cause,
                "time": format_ns(cause.ns),
                "share": cause.share,
                "said": f"{cause.share:.1%}",
                "at": sanitize(cause.lines[0][0]) if cause.lines else "",
                "at_share": f"{cause.lines[0][1] / cause.ns:.0%}" if cause.lines else "",
                "meaning": MEANT.get(cause.cause, ""),
            }
            for cause in account.causes
        ],
        "events": _events(account),
        "html": [section_html(section) for section in report.sections[1:]],
        "left": left,
        "runs": [sanitize(run.name) for run in runs],
    }


def _ranks(causes: Any, width_ns: int) -> dict[str, float]:
    """Mean number of ranks per cause in a bin."""
    return {cause: round(ns / width_ns, 4) for cause, ns in causes.items()}


def _worst(events: Sequence[Event]) -> tuple[Event, ...]:
    """Events of the table: those of a kind that begin together on several ranks are one row."""
    rows = together([event for event in events if event.kind not in ("started", "ended")])
    worst = sorted(rows, key=lambda row: (_ORDER.get(row[0].kind, 3), -row[0].ns, row[0].unix_ns))
    return tuple(event for row in worst[:MOST_ROWS] for event in row)


def _shown_attempts(account: JobAccount) -> Any:
    ordered = sorted(account.attempts, key=lambda attempt: (-attempt.lost_ns, attempt.ended, attempt.begin_ns))
    return tuple(sorted(ordered[:MOST_ROWS], key=lambda attempt: (attempt.begin_ns, attempt.rank or 0)))


def _events(account: JobAccount) -> list[dict[str, Any]]:
    """A mark per strip and bin, with its number of events."""
    strip_of = {kind: strip for strip, kinds in STRIPS.items() for kind in kinds}
    marks: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in account.events:
        if event.kind in strip_of:
            marks[strip_of[event.kind], event.unix_ns // account.width_ns].append(event)
    found = [
        {"strip": strip, "unix_ns": min(event.unix_ns for event in events), "said": _mark(events)}
        for (strip, _), events in marks.items()
    ]
    for change in account.changes:
        said = f"{change.change:+.0%}: {format_ns(change.before_ns)} to {format_ns(change.after_ns)} at {change.line}"
        found.append({"strip": "step time changed", "unix_ns": change.unix_ns, "said": sanitize(said)})
    return sorted(found, key=lambda mark: mark["unix_ns"])


def _mark(events: Sequence[Event]) -> str:
    kinds = Counter(event.kind for event in events)
    lines = Counter(event.line for event in events if event.line)
    longest = max(event.ns for event in events)
    parts = [
        ", ".join(f"{count:,} {kind}" if count > 1 else kind for kind, count in kinds.items()),
        f"up to {format_ns(longest)}" if longest else "",
        f"at {next(iter(lines))}" if lines else "",
    ]
    return sanitize(", ".join(filter(None, parts)))


def table_view(jobs: Sequence[tuple[JobWork, JobAccount]]) -> dict[str, Any]:
    """``jobs``: a row each; ``nodes``: those of all jobs that were compared, slowest first."""
    return {"kind": "table", "jobs": [_row(work, account) for work, account in jobs], "nodes": _nodes(jobs)}


def _row(work: JobWork, account: JobAccount) -> dict[str, Any]:
    rest = next((cause for cause in account.causes if cause.cause != "training steps"), None)
    times = [rank.step_ns for rank in account.ranks if rank.step_ns is not None]
    return {
        "key": work.key,
        "name": sanitize(work.path.name),
        "began": clock(account.begin_unix_ns),
        "wall": format_ns(account.wall_ns),
        "ranks": len(account.ranks),
        "goodput": account.goodput,
        "kept": f"{account.goodput:.1%}",
        "steps": f"{account.steps:,}",
        "step": amount_text("ns", sum(times) / len(times)) if times else "",
        "rest": "" if rest is None else f"{rest.cause} {rest.share:.0%}",
        "at": sanitize(rest.lines[0][0]) if rest is not None and rest.lines else "",
        "restarts": sum(event.kind == "killed" for event in account.events),
        "parts": {cause.cause: cause.share for cause in account.causes},
        "changes": len(account.changes),
    }


def _nodes(jobs: Sequence[tuple[JobWork, JobAccount]]) -> list[dict[str, Any]]:
    """Hosts by the jobs in which they were slow again and again, then by the share of time in which they were slow."""
    by_host: dict[str, list[tuple[str, Any]]] = defaultdict(list)
    for work, account in jobs:
        for node in account.nodes:
            by_host[node.host].append((work.path.name, node))
    found = []
    for host, held in by_host.items():
        compared = [(job, node) for job, node in held if node.bins]
        bins = sum(node.bins for _, node in compared)
        slow = [job for job, node in compared if node.slow_again]
        worst = max((node.excess or 0.0 for _, node in compared), default=0.0)
        found.append(
            {
                "host": sanitize(host),
                "jobs": len(held),
                "compared": len(compared),
                "slow_jobs": len(slow),
                "slow_in": [sanitize(job) for job in slow[:4]],
                "slow_share": sum(node.slow_bins for _, node in compared) / bins if bins else 0.0,
                "worst": f"{worst:+.0%}" if worst >= LEAST_EXCESS else "",
                "killed": sum(node.killed for _, node in held),
                "stalled": sum(node.stalled for _, node in held),
            }
        )
    return sorted(found, key=lambda row: (-row["slow_jobs"], -row["slow_share"], -row["killed"], row["host"]))[
        :MOST_NODES
    ]


CAUSE_COLORS: dict[str, str] = {
    "training steps": "#3f7fd6", "warm-up steps": "#9cc0ee", "compilation": "#8a5a44", "waiting for data": "#c2a21f",
    "evaluation": "#1f8f74", "saving checkpoints": "#7f7fbf", "restoring": "#9465c2", "logging": "#6b8e23",
    "waiting for ranks": "#b5838d", "waiting for a core": "#8a5a9e", "waiting for a thread or process": "#e0892b",
    "sleeping": "#7b8794", "stalled": "#cf4a32", "imports": "#d8b98a", "set-up": "#b0722a",
    "after the last step": "#5b6b7b", "lost work": "#d4407f", "between attempts": "#aab2bd", "not recorded": "#d5dae0",
}  # fmt: skip
"""Colour by cause."""
