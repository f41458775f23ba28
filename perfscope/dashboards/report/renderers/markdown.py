"""Sections in GitHub's Markdown: each folded under its summary, every list cut to an overview."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import TYPE_CHECKING

from perfscope.dashboards.report.blocks import (
    Advice,
    Badge,
    Chart,
    Code,
    Command,
    Effect,
    FindingBlock,
    Listing,
    Paragraph,
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
"""Most rows and sentences of a block: a comment is an overview, the other formats have all."""

MOST_SECTIONS = 8
"""Most sections of one kind: memories, programs, plans."""

BAR_WIDTH = 80
"""Columns of a bar and its legend that a comment shows without a scroll bar."""

MARKS = {
    "worse": "\N{LARGE RED CIRCLE}",
    "better": "\N{LARGE GREEN CIRCLE}",
    "open": "\N{LARGE YELLOW CIRCLE}",
    "plain": "\N{MEDIUM WHITE CIRCLE}",
}
"""Mark of a badge, by tone."""

SEVERITY_MARKS = {
    "high": "\N{LARGE RED CIRCLE}",
    "medium": "\N{LARGE YELLOW CIRCLE}",
    "low": "\N{MEDIUM WHITE CIRCLE}",
}

MOST_EVIDENCE = 5
"""Most evidence rows of a finding: a comment is an overview, the other formats have all."""

_ACTIVE = re.compile(r"[\\`*_\[\]|~$]")
"""Characters that format text inside a line. The brackets make links and pictures; ``|`` ends a cell."""
_BLOCK = re.compile(r"^(\s*)(?=[#+=-]|\d+[.)])(\d*)")
"""Characters that begin a heading, a list or a rule at the start of a line."""
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_LINKED = re.compile(r"@|(?:#|!|%|&amp;)(?=\d)|(?<=:)(?=//)|(?i:(?<=www)(?=\.))|(?i:\bGH-(?=\d))")
"""Characters from which GitHub and GitLab make mentions, references (issues, merge requests, milestones, epics) and
links in bare text, even after HTML entities are resolved."""
_COMMIT = re.compile(r"\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b")
"""References to commits, which are recognised outside code only."""
_APART = "\u200b"
"""A zero-width space: text around it is not recognised as a mention or link."""


def sections_markdown(sections: Sequence[Section], rows: int = MOST_ROWS) -> str:
    """A folded block per section, and the number of sections left out. ``rows``: limit for each block."""
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
    """A section without a fold: its title and summary in one line, its blocks below, details folded.

    ``rows``: limit for each block; 0: the same number as on a terminal.
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
    elif not isinstance(block, Chart):
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
    """A table with names as code and numbers aligned right. ``bar``: as in ``Table``."""
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


def finding_row(block: FindingBlock) -> tuple[str, ...]:
    """A finding as cells: mark, saving, share, description, place and basis."""
    words = finding_words(block)
    title = f"**{escape(words.rule)}**: {escape(words.title + words.on_ranks)}"
    where = code(words.where) if words.where else ""
    return SEVERITY_MARKS[words.severity], words.gain, words.share, title, where, words.basis


def finding_markdown(block: FindingBlock) -> str:
    """A finding in a fold: place, evidence, advice."""
    words = finding_words(block)
    title = f"{in_html(words.rule)}: {in_html(words.title)}"  # a line of HTML, in which Markdown is not parsed
    known = [f"{what} {code(name)}" for what, name in words.place]
    known += [f"moves {words.moves}"] if words.moves else []
    parts = [prose(words.detail), ", ".join(known), fenced("\n".join(words.around)) if words.around else ""]
    if block.evidence is not None:
        parts.append(table_markdown(block.evidence.heads, block.evidence.rows[:MOST_EVIDENCE]))
    lines = [f"{part}\n" for part in parts if part]
    head = f"\n<details><summary>{title}</summary>\n"
    return "\n".join([head, *lines, advice_text(words.advice), "\n</details>\n"])


def escape(text: str) -> str:
    """Return ``text`` as plain words of a Markdown line, without formatting, HTML, mentions, links or table cells."""
    return _BLOCK.sub(r"\1\2\\", inline(text))


def inline(text: str) -> str:
    """Like ``escape``, for text that never begins a line or list item: a cell, the rest of a sentence."""
    return _ACTIVE.sub(r"\\\g<0>", in_html(text))


def in_html(text: str) -> str:
    """Return ``text`` for an HTML block, in which Markdown is not parsed, without tags, mentions or links."""
    return _COMMIT.sub(lambda match: _APART.join(re.findall(".{1,4}", match[0])), _unlinked(text))


def _unlinked(text: str) -> str:
    return _LINKED.sub(lambda match: match[0] + _APART, text.translate(_ENTITIES))


def code(text: str) -> str:
    """Return ``text`` as code in a table cell, in HTML because a backtick or ``|`` would end Markdown's own code."""
    return f"<code>{_ACTIVE.sub(lambda match: f'&#{ord(match[0])};', _unlinked(text))}</code>"


def advice_text(text: str) -> str:
    """Escaped paragraphs, and code blocks fenced by more backticks than they contain."""
    parts = []
    for block in paragraphs(text):
        if block.is_code:
            parts.append(fenced(block.text, block.language))
        else:
            parts.append(prose(block.text))
    return "\n\n".join(parts)


def fenced(text: str, language: str = "") -> str:
    """A block of code, fenced by more backticks than it contains."""
    fence = "`" * max(3, max(map(len, re.findall("`+", text)), default=0) + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def prose(text: str, words: Callable[[str], str] = escape) -> str:
    """Words, with text between backticks as code; ``words``: ``inline`` in a cell."""
    pieces = Paragraph(text=text, is_code=False).pieces()
    return "".join(code(piece) if is_code else words(piece) for piece, is_code in pieces)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """A table; ``align`` has ``l`` or ``r`` for each column, cells must be Markdown."""
    rule = "|".join("-:" if side == "r" else "-" for side in align)
    lines = [f"| {' | '.join(heads)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)
