"""Sections in HTML: a card each, with what matters open and the rest folded; tables stack on a phone."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Command, Listing, Picture, Table, Text
from perfscope.dashboards.report.html_page import card
from perfscope.dashboards.report.html_page import table as html_table
from perfscope.dashboards.report.prose import prose
from perfscope.dashboards.report.renderers.values import NAMES, WORDS, rest_text, sentence, shown
from perfscope.dashboards.report.svg import share_bar
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.dashboards.report.blocks import Bar, Block, Head, Section, Value

MOST_NARROW = 6
"""Columns that stand side by side on a tablet."""

FEWEST_OPEN = 8
"""Rows of a table that stand open at the least."""


def sections_html(sections: Sequence[Section], more: str = "More") -> Iterator[str]:
    """A card for each section; the small ones are folded into one card, titled ``more``."""
    yield from (section_html(section) for section in sections if not section.detail)
    small = [section for section in sections if section.detail]
    if small:
        folds = (_fold(_lead(section), "".join(blocks_html(section.blocks))) for section in small)
        yield card(more, "".join(folds))


def section_html(section: Section) -> str:
    """One section as a card."""
    summary = sanitize(section.summary, TEXT_LIMIT)
    lead = f"<p>{prose(sentence(summary))}</p>" if summary else ""
    return card(sanitize(section.title), lead + "".join(blocks_html(section.blocks)))


def _lead(section: Section) -> str:
    title = sanitize(section.title)
    return f"{title}: {sanitize(section.summary, TEXT_LIMIT)}" if section.summary else title


def blocks_html(blocks: Sequence[Block]) -> Iterator[str]:
    """Blocks one below the other; details that follow each other share nothing and are folded one by one."""
    for block in blocks:
        if isinstance(block, Picture):
            yield block.markup
        elif isinstance(block, Command):
            command = escape(sanitize(block.command, TEXT_LIMIT))
            yield f'<p class="note">{escape(sentence(f"{block.what}:"))} <code>{command}</code></p>'
        elif isinstance(block, Text):
            kind = "" if block.warning else ' class="note"'
            yield f"<p{kind}>{prose(sentence(sanitize(block.text, TEXT_LIMIT)))}</p>"
        elif isinstance(block, Listing):
            yield from _listing(block)
        else:
            yield from _table(block)


def _listing(block: Listing) -> Iterator[str]:
    items = [escape(sanitize(item, TEXT_LIMIT)) for item in block.items]
    shown_items = [] if block.detail else items[: block.few]
    folded = items[len(shown_items) :]
    if shown_items:
        yield f"<ul>{''.join(f'<li>{item}</li>' for item in shown_items)}</ul>"
    text = rest_text(block, 0)
    note = f'<p class="note">{escape(text)}</p>' if text else ""
    if folded:
        title = f"{len(folded):,} {block.rest or 'lines'}" if block.detail else f"{len(folded):,} more {block.rest}"
        yield _fold(title, f"<ul>{''.join(f'<li>{item}</li>' for item in folded)}</ul>{note}")
    else:
        yield note


def _table(block: Table) -> Iterator[str]:
    text = rest_text(block, 0)
    note = f'<p class="note">{escape(text)}</p>' if text else ""
    if block.detail:
        yield _fold(sanitize(block.title), table_html(block.heads, block.rows, bar=block.bar) + note)
        return
    few = max(block.few, FEWEST_OPEN)
    first, folded = block.rows[:few], block.rows[few:]
    if block.title:
        yield f"<h3>{escape(sanitize(block.title))}</h3>"
    if first:
        yield table_html(block.heads, first, bar=block.bar)
    if folded:
        yield _fold(f"{len(folded):,} more {block.rest}", table_html(block.heads, folded, bar=block.bar) + note)
    else:
        yield note


def _fold(title: str, body: str) -> str:
    return f"<details><summary>{escape(title.strip())}</summary>{body}</details>"


def table_html(heads: Sequence[Head], rows: Sequence[Sequence[Value]], *, bar: Bar = "") -> str:
    """A table that stacks on a phone; a wide one on a tablet, too. ``bar``: as of ``Table``."""
    drawn = next((index for index, head in enumerate(heads) if head.unit == "share"), None) if bar else None
    kind = "stacks wide" if len(heads) > MOST_NARROW else "stacks"
    titles = [f'<th class="{_side(head)}">{escape(head.title)}</th>' for head in heads]
    bars: list[str] = [""] * len(rows)
    if drawn is not None:
        titles.insert(0, "<td></td>")
        kind += " hot"
        bars = [f'<td class="share">{share_bar(*piece)}</td>' for piece in _pieces(rows, drawn, bar)]
    return html_table(titles, (_row(heads, row, drawn) for row, drawn in zip(rows, bars, strict=True)), kind=kind)


def _pieces(rows: Sequence[Sequence[Value]], drawn: int, bar: Bar) -> Iterator[tuple[float, float]]:
    """(share, where its piece of the bar begins), both 0 to 1."""
    start = 0.0
    for row in rows:
        value = row[drawn]
        share = float(value) if isinstance(value, int | float) else 0.0
        yield share, start
        start += share if bar == "parts" else 0.0


def _row(heads: Sequence[Head], row: Sequence[Value], bar: str) -> str:
    cells = [bar]
    for value, head in zip(row, heads, strict=True):
        text = escape(shown(value, head))
        if head.unit in NAMES and text:
            text = f"<code>{text.replace('/', '/<wbr>')}</code>"
        kind = f"{_side(head)} at" if head.unit == "place" else _side(head)
        cells.append(f'<td class="{kind}" data-name="{escape(head.title)}">{text}</td>')
    return f"<tr>{''.join(cells)}</tr>"


def _side(head: Head) -> str:
    return "t" if head.unit in WORDS else "n"
