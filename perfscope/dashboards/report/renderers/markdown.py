"""Sections in GitHub's Markdown: each folded below its summary, every list cut to an overview."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Advice, Badge, Code, Command, Effect, Listing, Picture, Table, Text
from perfscope.dashboards.report.markdown_text import (
    advice_text,
    code,
    escape,
    fenced,
    in_html,
    inline,
    markdown_table,
    prose,
)
from perfscope.dashboards.report.renderers.effects import scale_of, scale_title, text_bar
from perfscope.dashboards.report.renderers.text import parts_text, printed
from perfscope.dashboards.report.renderers.values import NAMES, WORDS, code_lines, rest_text, shown
from perfscope.model.untrusted_text import TEXT_LIMIT, clean, sanitize, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perfscope.dashboards.report.blocks import Bar, Block, Head, Section, Value

MOST_ROWS = 8
"""Rows and sentences of a block: a comment is an overview, the other formats hold all."""

MOST_SECTIONS = 8
"""Sections of one kind: memories, programs, plans."""

BAR_WIDTH = 80
"""Columns of a bar and its legend: what a comment shows without a scroll bar."""

MARKS = {
    "worse": "\N{LARGE RED CIRCLE}",
    "better": "\N{LARGE GREEN CIRCLE}",
    "open": "\N{LARGE YELLOW CIRCLE}",
    "plain": "\N{MEDIUM WHITE CIRCLE}",
}
"""Of a badge, by tone."""


def sections_markdown(sections: Sequence[Section], rows: int = MOST_ROWS) -> str:
    """A folded block for each section, and how many are left out. ``rows``: of each of their blocks."""
    kept = [section for section in sections if not section.detail][:MOST_SECTIONS]
    parts = [section_markdown(section, rows) for section in kept]
    if len(kept) < len(sections):
        parts.append(f"and {len(sections) - len(kept):,} smaller ones in the other formats\n")
    return "\n".join(parts)


def section_markdown(section: Section, rows: int = MOST_ROWS) -> str:
    """One section as a folded block."""
    title = sanitize(section.title)
    lead = f"{title}: {sanitize(section.summary, TEXT_LIMIT)}" if section.summary else title
    body = [line for block in section.blocks for line in _block(block, rows)]
    if not body:
        return f"{escape(lead)}\n"
    return "\n".join([f"<details><summary>{in_html(lead)}</summary>\n", *body, "</details>"])


def open_section(section: Section, rows: int = 0) -> str:
    """One section that is not folded: its title and summary as a line, its blocks below, details folded.

    ``rows``: of each block; 0: as many as a terminal shows.
    """
    lead = f"**{escape(sanitize(section.title))}**"
    if section.summary:
        lead += f": {escape(sanitize(section.summary, TEXT_LIMIT))}"
    lines = [lead]
    for block in section.blocks:
        most = rows or (block.few if isinstance(block, Table | Listing) else MOST_ROWS)
        if isinstance(block, Table | Listing) and block.detail:
            title = (block.title if isinstance(block, Table) else block.rest) or "details"
            lines += ["", _folded(title, _block(block, most, titled=False))]
        else:
            lines += _block(block, most)
    return "\n".join(lines)


def _folded(title: str, body: Iterable[str]) -> str:
    return "\n".join([f"<details><summary>{in_html(sanitize(title))}</summary>\n", *body, "\n</details>"])


def _block(block: Block, most: int, *, titled: bool = True) -> Iterator[str]:
    if isinstance(block, Text):
        yield f"- {prose(sanitize(block.text, TEXT_LIMIT))}"
    elif isinstance(block, Listing):
        items = block.items[:most]
        yield from (f"- {prose(sanitize(item, TEXT_LIMIT))}" for item in items)
        yield from (f"- {escape(text)}" for text in (rest_text(block, len(block.items) - len(items)),) if text)
    elif isinstance(block, Command):
        yield f"- {escape(block.what)}: {code(sanitize(block.command, TEXT_LIMIT))}"
    elif isinstance(block, Code):
        yield advice_text("\n".join(("```````", *code_lines(block), "```````")))
    elif isinstance(block, Advice):
        yield ""
        yield _folded(block.title, (advice_text(shorten(clean(block.text), TEXT_LIMIT)),))
    elif not isinstance(block, Picture):
        yield from _table(block, most, titled=titled)


def _table(block: Table, most: int, *, titled: bool) -> Iterator[str]:
    rows = block.rows[:most]
    if block.title and titled:
        yield f"\n{escape(sanitize(block.title))}"
    if rows and block.bar == "parts":
        drawn = printed(lambda width: parts_text(block.heads, block.rows, width), width=BAR_WIDTH)
        yield f"\n{fenced(dedent(drawn).rstrip())}\n"
    elif rows:
        yield f"\n{table_markdown(block.heads, rows, bar=block.bar)}\n"
    text = rest_text(block, len(block.rows) - len(rows))
    if text:
        yield f"- {escape(text)}"


def table_markdown(heads: Sequence[Head], rows: Sequence[Sequence[Value]], *, bar: Bar = "") -> str:
    """A table; names as code, numbers to the right. ``bar``: as of ``Table``."""
    cells = [[_cell(value, head) for value, head in zip(row, heads, strict=True)] for row in rows]
    titles = [escape(head.title) for head in heads]
    sides = "".join("l" if head.unit in WORDS else "r" for head in heads)
    end = scale_of(rows) if bar == "effects" else None
    if end is not None:
        titles.append(scale_title(end))
        sides += "l"
        for line, row in zip(cells, rows, strict=True):
            drawn = next((text_bar(value, end) for value in row if isinstance(value, Effect)), "")
            line.append(f"`{drawn}`" if drawn else "")
    return markdown_table(titles, cells, sides)


def _cell(value: Value, head: Head) -> str:
    text = shown(value, head)
    if isinstance(value, Badge) and text:
        return f"{MARKS[value.tone]} {prose(text, inline)}"
    if head.unit in NAMES and text:
        return code(text)
    if head.unit in WORDS or isinstance(value, str):
        return prose(text, inline)
    return in_html(text).replace("~", "\\~")
