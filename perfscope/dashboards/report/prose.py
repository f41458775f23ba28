"""Advice as paragraphs and blocks of code, and a paragraph as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

_FENCE = re.compile(r"^\s*(?:`{3,}|~{3,})(\w*)\s*$")
_SPAN = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A paragraph (lines joined by spaces), or code as it was written (``is_code``)."""

    text: str
    is_code: bool
    language: str = ""

    def pieces(self) -> Iterator[tuple[str, bool]]:
        """(text, is code) of a paragraph: what stands between single backticks is code."""
        for index, piece in enumerate(_SPAN.split(self.text)):
            if piece:
                yield piece, bool(index % 2)


def blocks(advice: str) -> Iterator[Paragraph]:
    """The paragraphs of ``advice`` and its code: fenced (closed or not), or indented by four spaces."""
    prose: list[str] = []
    code: list[str] = []
    language: str | None = None
    for line in advice.splitlines():
        fence = _FENCE.match(line)
        if language is not None:  # inside a fence, where every line but its end is code
            if fence is None:
                code.append(line)
                continue
            yield from _code(code, language)
            language = None
        elif fence is not None:
            yield from _code(code)
            yield from _paragraph(prose)
            language = fence[1]
        elif line.startswith("    ") and not prose:
            code.append(line[4:])
        elif not line.strip():
            yield from _paragraph(prose)
            if code:
                code.append("")
        else:
            yield from _code(code)
            prose.append(line.strip())
    yield from _paragraph(prose)
    yield from _code(code, language or "")


def _paragraph(lines: list[str]) -> Iterator[Paragraph]:
    if lines:
        yield Paragraph(text=" ".join(lines), is_code=False)
        lines.clear()


def _code(lines: list[str], language: str = "") -> Iterator[Paragraph]:
    text = "\n".join(lines).strip("\n")
    if text:
        yield Paragraph(text=text, is_code=True, language=language)
    lines.clear()


def prose(text: str) -> str:
    """Words, and code where they stand between backticks."""
    pieces = Paragraph(text=text, is_code=False).pieces()
    return "".join(f"<code>{escape(piece)}</code>" if is_code else escape(piece) for piece, is_code in pieces)


def code_html(text: str) -> str:
    """Code with a button that copies it."""
    return (
        f'<div class="code"><pre tabindex="0">{escape(text)}</pre>'
        '<button class="copy" type="button">copy</button></div>'
    )


def advice_html(text: str) -> Iterator[str]:
    """Advice as paragraphs, and blocks of code with a button that copies them."""
    for block in blocks(text):
        if block.is_code:
            yield code_html(block.text)
        else:
            yield f"<p>{prose(block.text)}</p>"
