"""Findings in HTML: a card each, with what to do and the evidence folded below."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.report.evidence import evidence_table
from perfscope.dashboards.report.html_page import card
from perfscope.dashboards.report.prose import advice_html, prose
from perfscope.dashboards.report.renderers.html import blocks_html
from perfscope.dashboards.report.summary import NO_TIME, SHARE_OF, FindingRow, Summary

if TYPE_CHECKING:
    from collections.abc import Iterator

MOST_FINDINGS = 200
"""Findings that are drawn: nobody reads on to the two hundred first, and a phone must open the file."""

OPENED = 3
"""Findings whose details stand open: the ones to begin with."""


def findings(summary: Summary, *, most: int = MOST_FINDINGS, opened: int = OPENED) -> Iterator[str]:
    """The heading and a card each, the costliest first; that there are none, or more, is said.

    ``opened``: those whose details stand open.
    """
    rows = summary.findings[:most]
    if not rows:
        yield card("Findings", f"<p>{nothing_found(summary)}</p>")
        return
    yield f"<h2>Findings{', the largest saving first' if len(summary.timed) > 1 else ''}</h2>"
    yield from (finding_card(row, opened=index < opened) for index, row in enumerate(rows))
    if len(rows) < len(summary.findings):
        left = len(summary.findings) - len(rows)
        yield card("More", f"<p>{left:,} more findings; the JSON report holds all.</p>")


def nothing_found(summary: Summary) -> str:
    """That there are no findings, and how much that is worth, as a sentence."""
    return f"{summary.nothing[:1].upper()}{summary.nothing[1:]}." if summary.nothing else ""


def finding_card(row: FindingRow, *, opened: bool) -> str:
    """One finding with its evidence and advice; ``opened``: its details stand open."""
    amount, over = _per(row.gain)
    share = f"<span>{escape(f'{row.share} {SHARE_OF[row.per_step]}')}</span>" if row.share else ""
    if row.memory and not row.saves:
        share = "<span>of memory</span>"
    per = f"<span>{over}{', ' if share else ''}</span>" if over else ""
    saves = f"<b>{escape(amount)}</b>{per}{share}" if row.saves or row.memory else f"<span>{NO_TIME}</span>"
    text = " · ".join(f"{escape(what)} <code>{escape(name)}</code>" for what, name in row.place)
    detail = f'<div class="detail">{prose(row.detail)}</div>' if row.detail else ""
    code = f"<pre>{escape(chr(10).join(row.around))}</pre>" if row.around else ""
    traced = f" · {escape(row.traced)}" if row.traced else ""
    moves = f" · moves {escape(row.bytes)}" if row.bytes else ""
    return (
        f'<article class="card finding {row.severity}"><div class="row">'
        f'<div class="saves">{saves}</div>'
        f'<div class="what"><div class="title">{escape(row.rule)}: {prose(row.title + row.on_ranks)}</div>'
        f'{detail}<div class="where">{text}{moves}{traced}</div>{code}</div>'
        f'<div class="chips"><span class="chip {row.severity}">{row.severity}</span>'
        f'<span class="chip">{escape(row.basis)}</span></div></div>'
        f"<details{' open' if opened else ''}><summary>what to do, and the evidence</summary>"
        f"{''.join(advice_html(row.advice))}{_evidence(row)}</details></article>"
    )


def _per(gain: str) -> tuple[str, str]:
    """``'6.90 ms a run'`` -> ``('6.90 ms', 'a run')``: the amount stands large, what it is of below it."""
    for over in ("a run", "in all"):
        if gain.endswith(f" {over}"):
            return gain.removesuffix(f" {over}"), over
    return gain, ""


def _evidence(row: FindingRow) -> str:
    """The rows of evidence; of many the first ones stand open."""
    if not row.evidence:
        return ""
    return f"<h3>Evidence</h3>{''.join(blocks_html((evidence_table(row.evidence, row.evidence_left),)))}"
