"""The report as a comment on a pull request: GitHub's Markdown, within GitHub's size."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from perfscope.dashboards.report.renderers.markdown import (
    SEVERITY_MARKS,
    escape,
    finding_markdown,
    finding_row,
    markdown_table,
    open_section,
    prose,
    section_markdown,
    sections_markdown,
)
from perfscope.dashboards.report.sections.devices import device_sections
from perfscope.dashboards.report.summary import Summary, coverage_sections, summarize
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perfscope.analyzers.engine import Analysis
    from perfscope.dashboards.report.blocks import FindingBlock

MOST_CHARACTERS = 60_000
"""Most characters of a comment. GitHub refuses comments above 65,536; the difference is room for text that a bot adds.
"""

FIRST_FINDINGS = 3
"""Findings above the first fold."""

ROOM = 120
"""Characters reserved for the notice on findings that do not fit."""

MOST_ROWS = 50
"""Most findings in the tables: more than one pull request will address."""


def render(analysis: Analysis, *, limit: int = MOST_CHARACTERS) -> str:
    """Return the report as Markdown of at most ``limit`` characters; parts that do not fit are counted.

    The account and the first findings come before the first fold; all else is folded.
    """
    summary = summarize(analysis)
    head = "\n\n".join(_head(summary)) + "\n"
    tail = "\n".join(_tail(summary))
    table = len("".join(_others(summary, (), "")))
    room = limit - len(head) - table - min(len(tail), limit // 3) - ROOM
    kept: list[str] = []
    for part in map(finding_markdown, summary.findings):
        if len(part) > room:
            break
        kept.append(part)
        room -= len(part)
    first, others = kept[:FIRST_FINDINGS], kept[FIRST_FINDINGS:]
    missing = len(summary.findings) - len(kept)
    notice = f"\n_{missing} more findings do not fit here; the JSON and HTML reports hold all._\n" if missing else ""
    more = "".join(_others(summary, others, notice))
    return _cut(f"{head}{''.join(first)}{more}\n{tail}\n", limit)


def _others(summary: Summary, details: Sequence[str], notice: str) -> Iterable[str]:
    """The findings after the first ones in one fold: a table, and the details of each."""
    rows = summary.findings[FIRST_FINDINGS:]
    if not rows:
        yield notice
        return
    yield f"\n<details><summary>{len(rows)} more findings</summary>\n\n"
    yield _table(rows[: MOST_ROWS - FIRST_FINDINGS])
    if len(summary.findings) > MOST_ROWS:
        yield f"\n\n_{len(summary.findings) - MOST_ROWS} more findings are not in this table._"
    yield "\n"
    yield from details
    yield f"{notice}\n</details>\n"


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    notice = "\n\n_cut: the report is larger than a comment may be._\n"
    return text[: limit - len(notice)].rpartition("\n")[0] + notice


def _head(summary: Summary) -> Iterable[str]:
    of_level: Counter[str] = Counter(block.finding.severity for block in summary.findings)
    counts = [f"{mark} {of_level[level]} {level}" for level, mark in SEVERITY_MARKS.items() if of_level[level]]
    leading, _ = summary.leading
    yield f"### perfscope: {', '.join(counts) or summary.none_found}"
    yield escape(sanitize(summary.headline, TEXT_LIMIT))
    if summary.nothing:
        yield escape(summary.nothing)
    if summary.facts:
        yield " · ".join(escape(sanitize(fact, TEXT_LIMIT)) for fact in summary.facts)
    yield from (open_section(section) for section in leading or device_sections(summary.devices))
    if summary.findings:
        yield _table(summary.findings[:FIRST_FINDINGS])
    yield from map(open_section, summary.large)
    yield from map(open_section, summary.recording)


def _folded(summary: Summary) -> Iterable[str]:
    """The sections after the first fold."""
    leading, others = summary.leading
    devices = device_sections(summary.devices) if leading and len(summary.devices) > 1 else ()
    for sections in (devices, (*summary.lines, *summary.top), others):
        if sections:
            yield sections_markdown(sections)


def _table(blocks: Sequence[FindingBlock]) -> str:
    heads = ("", "saves up to", "share", "finding", "where", "basis")
    return markdown_table(heads, map(finding_row, blocks), "lrrlll")


def _tail(summary: Summary) -> Iterable[str]:
    yield from _folded(summary)
    yield from (f"{section_markdown(section, MOST_ROWS)}\n" for section in coverage_sections(summary))
    yield from (f"{prose(sanitize(remark, TEXT_LIMIT))}\n" for remark in summary.remarks)
