"""Words of strangers in GitHub's Markdown, and tables of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_ACTIVE = re.compile(r"[\\`*_\[\]|~$]")
"""What formats inside a line. Of links and pictures the brackets do; a cell ends at ``|``."""
_BLOCK = re.compile(r"^(\s*)(?=[#+=-]|\d+[.)])(\d*)")
"""What makes a heading, a list or a rule where a line begins with it."""
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
_LINKED = re.compile(r"@|#(?=\d)|(?<=:)(?=//)|(?i:(?<=www)(?=\.))")
"""GitHub makes mentions, issue references and links of bare text even after HTML entities are resolved."""
_APART = "\u200b"
"""A space of no width: what stands on both sides of it is no mention and no link."""


def escape(text: str) -> str:
    """``text`` as plain words of a Markdown line: no formatting, HTML, mention, link or table cell."""
    return _BLOCK.sub(r"\1\2\\", _ACTIVE.sub(r"\\\g<0>", in_html(text)))


def in_html(text: str) -> str:
    """``text`` inside an HTML block, where Markdown is not read: no tag, mention or link."""
    return _LINKED.sub(lambda found: found[0] + _APART, text.translate(_ENTITIES))


def code(text: str) -> str:
    """``text`` as code in a table cell. HTML, because a backtick or ``|`` in a name would end Markdown's own."""
    return f"<code>{_ACTIVE.sub(lambda found: f'&#{ord(found[0])};', in_html(text))}</code>"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]], align: str) -> str:
    """A table; ``align`` has ``l`` or ``r`` for each column, cells are Markdown already."""
    rule = "|".join("-:" if side == "r" else "-" for side in align)
    lines = [f"| {' | '.join(heads)} |", f"|{rule}|", *(f"| {' | '.join(row)} |" for row in rows)]
    return "\n".join(lines)
