"""The report as a comment on a pull request: GitHub's Markdown, within GitHub's size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.report.coverage import coverage_sections
from perfscope.dashboards.report.evidence import evidence_table
from perfscope.dashboards.report.renderers.markdown import (
    advice_text,
    code,
    escape,
    fenced,
    in_html,
    markdown_table,
    open_section,
    prose,
    section_markdown,
    sections_markdown,
    table_markdown,
)
from perfscope.dashboards.report.sections.devices import device_sections
from perfscope.dashboards.report.summary import FindingRow, Summary, summarize

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perfscope.analyzers.engine import Analysis

SUFFIXES = (".md", ".markdown")

MOST_CHARACTERS = 60_000
"""GitHub refuses comments above 65,536 characters; the rest is room for what a bot adds."""

FIRST_FINDINGS = 3
"""Findings before the first fold."""

ROOM = 120
"""Characters of the notice on findings that do not fit."""

MOST_ROWS = 50
"""Findings in the tables: more than anyone acts on in one pull request."""

MOST_EVIDENCE = 5
"""Evidence rows of a finding: a comment is an overview, the other formats hold all."""

_MARKS = {"high": "\N{LARGE RED CIRCLE}", "medium": "\N{LARGE YELLOW CIRCLE}", "low": "\N{MEDIUM WHITE CIRCLE}"}


def render(analysis: Analysis, *, limit: int = MOST_CHARACTERS) -> str:
    """The report as Markdown of at most ``limit`` characters; what does not fit is said to be missing.

    Before its first fold stand the account and the first findings; all else is folded.
    """
    summary = summarize(analysis)
    head = "\n\n".join(_head(summary)) + "\n"
    tail = "\n".join(_tail(summary))
    table = len("".join(_others(summary, (), "")))
    room = limit - len(head) - table - min(len(tail), limit // 3) - ROOM
    kept: list[str] = []
    for part in map(_finding, summary.findings):
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
    """The findings after the first ones, folded together: a table, and the details of each."""
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
    counts = [f"{_MARKS[level]} {count} {level}" for level in _MARKS if (count := _count(summary, level))]
    leading, _ = summary.leading
    yield f"### perfscope: {', '.join(counts) or 'no findings'}"
    yield escape(summary.headline)
    if summary.nothing:
        yield escape(summary.nothing)
    if summary.facts:
        yield " · ".join(map(escape, summary.facts))
    yield from (open_section(section) for section in leading or device_sections(summary.devices))
    if summary.findings:
        yield _table(summary.findings[:FIRST_FINDINGS])


def _folded(summary: Summary) -> Iterable[str]:
    """The sections that are not before the first fold."""
    leading, others = summary.leading
    devices = device_sections(summary.devices) if leading and len(summary.devices) > 1 else ()
    for sections in (devices, summary.top, others):
        if sections:
            yield sections_markdown(sections)


def _table(rows: Sequence[FindingRow]) -> str:
    return markdown_table(("", "saves up to", "share", "finding", "where", "basis"), list(map(_row, rows)), "lrrlll")


def _count(summary: Summary, level: str) -> int:
    return sum(row.severity == level for row in summary.findings)


def _row(row: FindingRow) -> tuple[str, ...]:
    title = f"**{escape(row.rule)}**: {escape(row.title + row.on_ranks)}"
    return (_MARKS[row.severity], row.gain, row.share, title, "" if row.where == "-" else code(row.where), row.basis)


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
    yield from _folded(summary)
    yield from (f"{section_markdown(section, MOST_ROWS)}\n" for section in coverage_sections(summary))
    yield from (f"{prose(remark)}\n" for remark in summary.remarks)
