"""The report as a comment on a pull request: GitHub's Markdown, within GitHub's size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.report.abstained import coverage_sections
from perfscope.dashboards.report.device_rows import device_sections
from perfscope.dashboards.report.evidence import evidence_table
from perfscope.dashboards.report.markdown_text import advice_text, code, escape, fenced, in_html, markdown_table, prose
from perfscope.dashboards.report.renderers.markdown import (
    open_section,
    section_markdown,
    sections_markdown,
    table_markdown,
)
from perfscope.dashboards.report.summary import SHARE_OF, FindingRow, Summary, summarize

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perfscope.analyzers.engine import Analysis

SUFFIXES = (".md", ".markdown")

MOST_CHARACTERS = 60_000
"""GitHub refuses comments above 65,536 characters; the rest is room for what a bot adds."""

MOST_ROWS = 50
"""Findings in the table: more than anyone acts on in one pull request."""

MOST_EVIDENCE = 5
"""Evidence rows of a finding: a comment is an overview, the other formats hold all."""

_MARKS = {"high": "\N{LARGE RED CIRCLE}", "medium": "\N{LARGE YELLOW CIRCLE}", "low": "\N{MEDIUM WHITE CIRCLE}"}


def render(analysis: Analysis, *, limit: int = MOST_CHARACTERS) -> str:
    """The report as Markdown of at most ``limit`` characters; what does not fit is said to be missing."""
    summary = summarize(analysis)
    head = "\n\n".join(_head(summary)) + "\n"
    parts = [_finding(row) for row in summary.findings]
    tail = "\n".join(_tail(summary))
    notice = "\n_{} more findings do not fit here; the JSON and HTML reports hold all._\n"
    room = limit - len(head) - min(len(tail), limit // 3) - len(notice) - 20
    kept: list[str] = []
    for part in parts:
        if len(part) > room:
            break
        kept.append(part)
        room -= len(part)
    missing = notice.format(len(parts) - len(kept)) if len(kept) < len(parts) else ""
    return _cut(f"{head}{''.join(kept)}{missing}\n{tail}\n", limit)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    notice = "\n\n_cut: the report is larger than a comment may be._\n"
    return text[: limit - len(notice)].rpartition("\n")[0] + notice


def _head(summary: Summary) -> Iterable[str]:
    counts = [f"{_MARKS[level]} {count} {level}" for level in _MARKS if (count := _count(summary, level))]
    yield f"### perfscope: {', '.join(counts) or 'no findings'}"
    yield escape(summary.headline)
    if summary.nothing:
        yield escape(summary.nothing)
    if summary.facts:
        yield "\n".join(f"- {escape(fact)}" for fact in summary.facts)
    yield from (open_section(section) for section in summary.account)
    if summary.devices and (not summary.account or len(summary.devices) > 1):
        yield from (open_section(section) for section in device_sections(summary.devices))
    if summary.findings:
        share = SHARE_OF[any(row.per_step for row in summary.findings)]
        titles = ("", "saves up to", share, "finding", "where", "basis")
        yield markdown_table(titles, [_row(row) for row in summary.findings[:MOST_ROWS]], "lrrlll")
        if len(summary.findings) > MOST_ROWS:
            yield f"_{len(summary.findings) - MOST_ROWS} more findings are not in this table._"
    if summary.top:
        yield sections_markdown(summary.top)
    if summary.sections:
        yield sections_markdown(summary.sections)


def _count(summary: Summary, level: str) -> int:
    return sum(row.severity == level for row in summary.findings)


def _row(row: FindingRow) -> tuple[str, ...]:
    title = f"**{escape(row.rule)}**: {escape(row.title + row.on_ranks)}"
    return (_MARKS[row.severity], row.gain, row.share, title, code(row.where), row.basis)


def _finding(row: FindingRow) -> str:
    """One finding folded away: place, evidence, advice."""
    title = f"{in_html(row.rule)}: {in_html(row.title)}"  # a line of HTML: no Markdown is read in it
    parts = [f"\n<details><summary>{title}</summary>\n"]
    if row.detail:
        parts.append(f"{prose(row.detail)}\n")
    known = [f"{what} {code(name)}" for what, name in row.place]
    if row.bytes:
        known.append(f"moves {row.bytes}")
    if known:
        parts.append(", ".join(known) + "\n")
    if row.around:
        parts.append(fenced("\n".join(row.around)) + "\n")
    if row.evidence:
        shown = evidence_table(row.evidence[:MOST_EVIDENCE])
        parts.append(table_markdown(shown.heads, shown.rows) + "\n")
    parts.append(advice_text(row.advice))
    parts.append("\n</details>\n")
    return "\n".join(parts)


def _tail(summary: Summary) -> Iterable[str]:
    yield from (f"{section_markdown(section, MOST_ROWS)}\n" for section in coverage_sections(summary))
    yield from (f"{prose(remark)}\n" for remark in summary.remarks)
