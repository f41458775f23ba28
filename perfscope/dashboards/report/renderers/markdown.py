"""Sections in GitHub's Markdown: each folded below its summary, every list cut to an overview."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import (
    Advice,
    Badge,
    Code,
    Command,
    Effect,
    FindingBlock,
    Listing,
    Paragraph,
    Picture,
    Table,
    Text,
    paragraphs,
)
from perfscope.dashboards.report.renderers.text import parts_text, printed
from perfscope.dashboards.report.renderers.values import (
    NAMES,
    WORDS,
    code_lines,
    finding_words,
    rest_text,
    scale_of,
    scale_title,
    shown,
    text_bar,
)
from perfscope.model.untrusted_text import TEXT_LIMIT, clean, sanitize, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

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
    elif isinstance(block, FindingBlock):
        yield finding_markdown(block)
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
    titles = [escape(sanitize(head.title)) for head in heads]
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


SEVERITY_MARKS = {
    "high": "\N{LARGE RED CIRCLE}",
    "medium": "\N{LARGE YELLOW CIRCLE}",
    "low": "\N{MEDIUM WHITE CIRCLE}",
}

MOST_EVIDENCE = 5
"""Evidence rows of a finding: a comment is an overview, the other formats hold all."""


def finding_row(block: FindingBlock) -> tuple[str, ...]:
    """A finding as cells: its mark, saving, share, what it is, place and basis."""
    words = finding_words(block)
    title = f"**{escape(words.rule)}**: {escape(words.title + words.on_ranks)}"
    where = code(words.where) if words.where else ""
    return SEVERITY_MARKS[words.severity], words.gain, words.share, title, where, words.basis


def finding_markdown(block: FindingBlock) -> str:
    """One finding folded away: place, evidence, advice."""
    words = finding_words(block)
    title = f"{in_html(words.rule)}: {in_html(words.title)}"  # a line of HTML: no Markdown is read in it
    known = [f"{what} {code(name)}" for what, name in words.place]
    known += [f"moves {words.moves}"] if words.moves else []
    parts = [prose(words.detail), ", ".join(known), fenced("\n".join(words.around)) if words.around else ""]
    if block.evidence is not None:
        parts.append(table_markdown(block.evidence.heads, block.evidence.rows[:MOST_EVIDENCE]))
    lines = [f"{part}\n" for part in parts if part]
    head = f"\n<details><summary>{title}</summary>\n"
    return "\n".join([head, *lines, advice_text(words.advice), "\n</details>\n"])


_ACTIVE = re.compile(r"[\\`*_\[\]|~$]")
"""What formats inside a line. Of links and pictures the brackets do; a cell ends at ``|``."""
_BLOCK = re.compile(r"^(\s*)(?=[#+=-]|\d+[.)])(\d*)")
"""What makes a heading, a list or a rule where a line begins with it."""
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_LINKED = re.compile(r"@|(?:#|!|%|&amp;)(?=\d)|(?<=:)(?=//)|(?i:(?<=www)(?=\.))|(?i:\bGH-(?=\d))")
"""GitHub and GitLab make mentions, references (issues, merge requests, milestones, epics) and links of bare text even
after HTML entities are resolved."""
_COMMIT = re.compile(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b")
"""And references to commits, but not inside code."""
_APART = "\u200b"
"""A space of no width: what stands on both sides of it is no mention and no link."""


def escape(text: str) -> str:
    """``text`` as plain words of a Markdown line: no formatting, HTML, mention, link or table cell."""
    return _BLOCK.sub(r"\1\2\\", inline(text))


def inline(text: str) -> str:
    """As ``escape``, of what never begins a line or an item of a list: a cell, the rest of a sentence."""
    return _ACTIVE.sub(r"\\\g<0>", in_html(text))


def in_html(text: str) -> str:
    """``text`` inside an HTML block, where Markdown is not read: no tag, mention or link."""
    return _COMMIT.sub(lambda match: _APART.join(re.findall(".{1,4}", match[0])), _unlinked(text))


def _unlinked(text: str) -> str:
    return _LINKED.sub(lambda match: match[0] + _APART, text.translate(_ENTITIES))


def code(text: str) -> str:
    """``text`` as code in a table cell. HTML, because a backtick or ``|`` in a name would end Markdown's own."""
    return f"<code>{_ACTIVE.sub(lambda match: f'&#{ord(match[0])};', _unlinked(text))}</code>"


def advice_text(text: str) -> str:
    """Paragraphs escaped but for their code; blocks of code fenced by more backticks than they hold."""
    parts = []
    for block in paragraphs(text):
        if block.is_code:
            parts.append(fenced(block.text, block.language))
        else:
            parts.append(prose(block.text))
    return "\n\n".join(parts)


def fenced(text: str, language: str = "") -> str:
    """A block of code as it is, between more backticks than it holds."""
    fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def prose(text: str, words: Callable[[str], str] = escape) -> str:
    """Words, and code where they stand between backticks; ``words``: ``inline`` in a cell."""
    pieces = Paragraph(text=text, is_code=False).pieces()
    return "".join(code(piece) if is_code else words(piece) for piece, is_code in pieces)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """A table; ``align`` has ``l`` or ``r`` for each column, cells are Markdown already."""
    rule = "|".join("-:" if side == "r" else "-" for side in align)
    lines = [f"| {' | '.join(heads)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)
