"""Sections in GitHub's Markdown: each folded below its summary, every list cut to an overview."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import Command, Listing, Picture, Table, Text
from perfscope.dashboards.report.markdown_text import code, escape, in_html, inline, markdown_table, prose
from perfscope.dashboards.report.renderers.values import NAMES, WORDS, rest_text, shown
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfscope.dashboards.report.blocks import Block, Head, Section, Value

MOST_ROWS = 8
"""Rows and sentences of a block: a comment is an overview, the other formats hold all."""

MOST_SECTIONS = 8
"""Sections of one kind: memories, programs, plans."""


def sections_markdown(sections: Sequence[Section]) -> str:
    """A folded block for each section, and how many are left out."""
    kept = [section for section in sections if not section.detail][:MOST_SECTIONS]
    parts = [section_markdown(section) for section in kept]
    if len(kept) < len(sections):
        parts.append(f"and {len(sections) - len(kept):,} smaller ones in the other formats\n")
    return "\n".join(parts)


def section_markdown(section: Section) -> str:
    """One section as a folded block."""
    title = sanitize(section.title)
    lead = f"{title}: {sanitize(section.summary, TEXT_LIMIT)}" if section.summary else title
    body = [line for block in section.blocks for line in _block(block)]
    if not body:
        return f"{escape(lead)}\n"
    return "\n".join([f"<details><summary>{in_html(lead)}</summary>\n", *body, "</details>"])


def open_section(section: Section) -> str:
    """One section that is not folded: its title and summary as a line, its tables below."""
    lead = f"**{escape(sanitize(section.title))}**"
    if section.summary:
        lead += f": {escape(sanitize(section.summary, TEXT_LIMIT))}"
    return "\n".join([lead, *(line for block in section.blocks for line in _block(block, whole=True))])


def _block(block: Block, *, whole: bool = False) -> Iterator[str]:
    if isinstance(block, Text):
        yield f"- {prose(sanitize(block.text, TEXT_LIMIT))}"
    elif isinstance(block, Listing):
        items = block.items[:MOST_ROWS]
        yield from (f"- {escape(sanitize(item, TEXT_LIMIT))}" for item in items)
        yield from (f"- {escape(text)}" for text in (rest_text(block, len(block.items) - len(items)),) if text)
    elif isinstance(block, Command):
        yield f"- {escape(block.what)}: {code(sanitize(block.command, TEXT_LIMIT))}"
    elif not isinstance(block, Picture):
        yield from _table(block, whole=whole)


def _table(block: Table, *, whole: bool) -> Iterator[str]:
    rows = block.rows[: block.few if whole else MOST_ROWS]
    if block.title:
        yield f"\n{escape(sanitize(block.title))}"
    if rows:
        yield f"\n{table_markdown(block.heads, rows)}\n"
    text = rest_text(block, len(block.rows) - len(rows))
    if text:
        yield f"- {escape(text)}"


def table_markdown(heads: Sequence[Head], rows: Sequence[Sequence[Value]]) -> str:
    """A table; names as code, numbers to the right."""
    cells = [[_cell(value, head) for value, head in zip(row, heads, strict=True)] for row in rows]
    return markdown_table(
        [escape(head.title) for head in heads], cells, "".join("l" if head.unit in WORDS else "r" for head in heads)
    )


def _cell(value: Value, head: Head) -> str:
    text = shown(value, head)
    if head.unit in NAMES and text:
        return code(text)
    return inline(text) if head.unit in WORDS else in_html(text).replace("~", "\\~")
