"""Findings with evidence and advice, what to look for in the timeline, what was not evaluated, and what is clean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from perfscope.dashboards.report.html_report import nothing_found
from perfscope.dashboards.report.renderers.html import finding_card, sections_html
from perfscope.dashboards.report.summary import coverage_sections, summarize
from perfscope.dashboards.web.timeline.index import events_kept
from perfscope.dashboards.web.timeline.marks import marked, numbers
from perfscope.dashboards.web.timeline.names import NAME_CHARS
from perfscope.dashboards.web.views import Job, Place
from perfscope.dashboards.web.views._tables import why_unplaced
from perfscope.model.finding import Finding
from perfscope.model.trace import Trace
from perfscope.model.units import format_ns
from perfscope.model.untrusted_text import sanitize

MOST_PIECES = 6
"""Most sections that a finding links to; the timeline has all."""
MOST_NAMES = 4
"""Most names per finding to search for in the timeline: the first identify a longer chain."""


def gather(trace: Trace, place: Place) -> None:
    """Only the trace's number, which links into the timeline need."""


def view(job: Job) -> dict[str, Any]:
    """``findings``: a card each; ``at``: sections of the timeline, ``find``: names; ``after``: cards of other rules.

    A section has ``mark`` for the timeline's address, and its description, long (``said``) and ``short``; ``how``: as
    in `timeline.marks`.
    ``source``: its line, for the editor. ``none``: why it has no sections. ``nothing``: sentence shown without
    findings.
    """
    summary = summarize(job.analysis)
    timeline = job.folder.parent / "timeline"  # written before any view
    placed = [
        replace(item, place=replace(item.place, folder=timeline / str(item.place.number))) for item in job.gathered
    ]
    events = [events_kept(item.place.folder) for item in placed]
    indexed = [item for item, held in zip(placed, events, strict=True) if held]
    empty = all(event == 0 for event in events)
    known = {text for item in indexed for text in _texts(item.place.folder)}
    rows = [
        {
            "rule": sanitize(item.block.rule),
            "severity": item.block.finding.severity,
            "html": finding_card(item.block, opened=index == 0),
            "at": [] if empty else _pieces(job, item.spans),
            "how": item.how,
            "none": ""
            if item.spans and not empty
            else why_unplaced(job.analysis, item.block.finding, anything=not empty),
            "memory": item.block.finding.bytes_are != "moved",
            "source": _source(item.block.finding),
            "find": [name for name in _names(item.block.finding) if name in known],
        }
        for index, item in enumerate(marked(job, indexed))
    ]
    return {
        "findings": rows,
        "nothing": "" if rows else nothing_found(summary),
        "left": len(summary.findings) - len(rows),
        "after": "".join(sections_html((*summary.recording, *coverage_sections(summary)))),
    }


def _source(finding: Finding) -> dict[str, str] | None:
    """The finding's line and the path of its file here; ``None`` if it cannot be shown."""
    if finding.excerpt is None or finding.where.line is None:
        return None
    return {"place": sanitize(finding.where.label()), "path": finding.excerpt.path}


def _pieces(job: Job, spans: Sequence[tuple[int, int, int]]) -> list[dict[str, str]]:
    starts, sources = job.analysis.starts_ns, job.analysis.sources
    place_of = {number: index for index, number in numbers(sources, job.gathered).items()}
    result = []
    for number, start, end in spans[:MOST_PIECES]:
        rank, since = sources[place_of[number]].rank, start - starts[place_of[number]]
        text = f"{format_ns(end - start)}, {format_ns(abs(since))} {'after' if since >= 0 else 'before'} the start"
        whose = "" if len(sources) == 1 or rank is None else f" of rank {rank}"
        short = f"{format_ns(end - start)} at {format_ns(since)}{whose.replace(' of', ',')}"
        result.append({"mark": f"{number}:{start}-{end}", "said": text + whose, "short": short})
    return result


def _texts(folder: Path) -> Iterable[str]:
    """Names of the events of an index, which the timeline can search for."""
    return msgspec.json.decode((folder / "texts.json").read_bytes(), type=dict[int, str]).values()


def _names(finding: Finding) -> list[str]:
    """Kernels and ops named by the finding or its evidence."""
    names = [finding.where.op, finding.where.kernel]
    names += [str(cells[key]) for cells in finding.evidence for key in ("kernel", "op") if cells.get(key)]
    return list(dict.fromkeys(sanitize(name, NAME_CHARS) for name in names if name))[:MOST_NAMES]
