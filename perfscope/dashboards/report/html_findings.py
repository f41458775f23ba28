"""Findings in HTML: a card each, with what to do and the evidence folded below."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.report.evidence import evidence_cell, evidence_headers
from perfscope.dashboards.report.html_page import card, table
from perfscope.dashboards.report.prose import advice_html, prose
from perfscope.dashboards.report.summary import NO_TIME, SHARE_OF, FindingRow, Summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_FINDINGS = 200
"""Findings that are drawn: nobody reads on to the two hundred first, and a phone must open the file."""

FIRST_ROWS = 6
"""Rows of evidence that are seen without asking."""

SHORT_CHARS, LINE_CHARS = 18, 60
"""Of a column of evidence, the longest text: it stays on one line, it is about a line, it is a list."""

LETTER_PX, BETWEEN_PX, LINE_PX, LIST_PX = 7, 14, 12 * 13, 18 * 13
"""Of a letter and of what is between columns; of the columns whose least width the style says."""
TABLET_PX = 570
"""What a tablet has for a table: where that is too little, rows are stacked there too."""

FEW_COLUMNS = 3
"""Columns that a phone shows side by side."""

OPENED = 3
"""Findings whose details stand open: the ones to begin with."""


def findings(summary: Summary) -> Iterator[str]:
    """The heading and a card each, the costliest first; that there are none, or more, is said."""
    rows = summary.findings[:MOST_FINDINGS]
    if not rows:
        yield card("Findings", f"<p>{nothing_found(summary)}</p>")
        return
    yield f"<h2>Findings{', the largest saving first' if len(summary.timed) > 1 else ''}</h2>"
    yield from (finding_card(row, opened=index < OPENED) for index, row in enumerate(rows))
    if len(rows) < len(summary.findings):
        left = len(summary.findings) - len(rows)
        yield card("More", f"<p>{left:,} more findings are left out of this page; the JSON report holds all.</p>")


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
    moves = f" · moves {escape(row.bytes)}" if row.bytes else ""
    return (
        f'<article class="card finding {row.severity}"><div class="row">'
        f'<div class="saves">{saves}</div>'
        f'<div class="what"><div class="title">{escape(row.rule)}: {prose(row.title + row.on_ranks)}</div>'
        f'<div class="where">{text}{moves}</div></div>'
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
    """A table; each cell knows its column's name, because on a phone rows are stacked and the head is gone."""
    if not row.evidence:
        return ""
    names = {key: escape(head) for key, head in evidence_headers(row.evidence[0]).items()}
    told = {key: [evidence_cell(key, cells.get(key)) for cells in row.evidence] for key in names}
    kinds = {key: _side([cells.get(key) for cells in row.evidence]) for key in names}
    heads = [f'<th class="{kinds[key]}">{name}</th>' for key, name in names.items()]
    body = [
        f"<tr>{''.join(_cell(kinds[key], name, told[key][index]) for key, name in names.items())}</tr>"
        for index in range(len(row.evidence))
    ]
    least = sum(_least_px(kinds[key], [name, *told[key]]) for key, name in names.items())
    kind = "stacks wide" if least > TABLET_PX else "stacks" if len(heads) > FEW_COLUMNS else ""
    left = f'<p class="note">and {row.evidence_left:,} more rows in the JSON report</p>' if row.evidence_left else ""
    first = f"<h3>Evidence</h3>{table(heads, body[:FIRST_ROWS], kind=kind)}"
    if len(body) <= FIRST_ROWS:
        return first + left
    more, rest = f"{len(body) - FIRST_ROWS} more rows", table(heads, body[FIRST_ROWS:], kind=kind)
    return f"{first}<details><summary>{more}</summary>{rest}{left}</details>"


def _cell(kind: str, name: str, text: str) -> str:
    return f'<td class="{kind}" data-name="{name}">{escape(text)}</td>'


def _side(values: Sequence[object]) -> str:
    """How wide a column may be: numbers (``n``), a word that stays whole (``s``), lines (``t``), lists (``l``)."""
    texts = [value for value in values if isinstance(value, str)]
    if not texts:
        return "n"
    longest = max(map(len, texts))
    return "s" if longest <= SHORT_CHARS else "t" if longest <= LINE_CHARS else "l"


def _least_px(kind: str, texts: Sequence[str]) -> int:
    """How narrow a column can be, about."""
    return BETWEEN_PX + ({"t": LINE_PX, "l": LIST_PX}.get(kind) or LETTER_PX * max(map(len, texts)))
