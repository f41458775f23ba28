"""Untrusted text in GitHub's Markdown, and tables of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from perfscope.dashboards.report.prose import Block, blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

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
    for block in blocks(text):
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
    pieces = Block(text=text, is_code=False).pieces()
    return "".join(code(piece) if is_code else words(piece) for piece, is_code in pieces)


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """A table; ``align`` has ``l`` or ``r`` for each column, cells are Markdown already."""
    rule = "|".join("-:" if side == "r" else "-" for side in align)
    lines = [f"| {' | '.join(heads)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)
