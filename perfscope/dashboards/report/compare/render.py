"""A comparison as text for a terminal, as a comment on a pull request, and as one HTML file that loads nothing."""

from __future__ import annotations

import json
import re
from html import escape
from typing import TYPE_CHECKING

import msgspec
from rich.text import Text as RichText

from perfscope.dashboards.report.compare.sections import (
    caution_sections,
    compare_sections,
    detail_sections,
    verdict_section,
)
from perfscope.dashboards.report.compare.words import (
    BY_TIME,
    SINGLE,
    TONES,
    environment,
    headline,
    is_quiet,
    pair_words,
    short_titles,
    summary_line,
    title,
)
from perfscope.dashboards.report.renderers.html import sections_html
from perfscope.dashboards.report.renderers.markdown import (
    MARKS,
    MOST_ROWS,
    code,
    inline,
    open_section,
    sections_markdown,
)
from perfscope.dashboards.report.renderers.page import page
from perfscope.dashboards.report.renderers.text import STYLES, WIDTH, hanging, printed, sections_text
from perfscope.model.errors import UsageError
from perfscope.model.untrusted_text import TEXT_LIMIT, sanitize, sanitize_value
from perfscope.model.version import package_version

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from perfscope.model.documents.comparison import Document

MOST_CHARACTERS = 60_000
"""Most characters of a comment. GitHub refuses comments above 65,536; the difference is room for text that a bot adds.
"""

MOST_EMBEDDED = 120_000
"""Most characters of the JSON embedded in a page, so that the page still opens at once on a phone."""

DEFAULT_KEY = "compare"
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_URL = re.compile(r"https?://[A-Za-z0-9._~:/?#@!$&*+,;=%-]+")

OPEN_ROWS = 6
"""Rows of each table of a comment that is not folded, so that tables and headline fit on one screen."""

FEW_FACTS = 3
"""Facts about the machine below the verdict; the others are folded."""


def render_text(document: Document, *, width: int = WIDTH, color: bool = False, verbose: bool = False) -> str:
    """Return the comparison as text of ``width`` columns; ``verbose``: everything, not only what fits on one screen."""
    return printed(lambda columns: _text(document, columns, verbose=verbose), width=width, color=color)


def _text(document: Document, width: int, *, verbose: bool) -> Iterator[RenderableType]:
    style = STYLES[TONES.get(document.headline, "plain")] or "bold"
    for line in document.cautions:
        yield RichText(sanitize(f"caution: {line}", TEXT_LIMIT), STYLES["open"], overflow="fold")
    lead = sanitize(f"perfscope: {headline(document)}", TEXT_LIMIT)
    yield RichText(lead, style, overflow="fold")
    method = document.method
    how = pair_words(method) if method.pairs else "" if method.kind == SINGLE else sanitize(method.kind)
    yield hanging(" · ".join(filter(None, (title(document), how))), style="")
    yield ""
    yield from sections_text(compare_sections(document), width, verbose=verbose)
    yield from sections_text(detail_sections(document), width, verbose=verbose)


def marker(key: str) -> str:
    """Return a comment's first line. ``UsageError`` unless the key consists of letters, digits, ``.``, ``_``, ``-``."""
    if not _KEY.fullmatch(key):
        raise UsageError(f"{sanitize(key)}: a key has letters, digits, '.', '_' and '-', at most 100 of them")
    return f"<!-- perfscope-report:{key} -->"


def render_markdown(
    document: Document, *, key: str = DEFAULT_KEY, url: str | None = None, limit: int = MOST_CHARACTERS
) -> str:
    """Return a comment on a pull request in GitHub's Markdown, at most ``limit`` characters; the text notes cuts.

    One line if nothing changed. ``key`` becomes a marker by which a bot finds this comment again; ``url`` links to the
    full report. ``UsageError``: ``key`` or ``url`` is not allowed in a comment.
    """
    if url is not None and not _URL.fullmatch(url):
        raise UsageError(f"{sanitize(url)}: not an http(s) address that a link can hold")
    lead = f"{marker(key)}\n"
    link = "" if url is None else f"[full report]({url})"
    if is_quiet(document):
        text = f"{lead}{_quiet(document)}{f' · {link}' if link else ''}\n"
        if len(text) <= limit:
            return text
    for rows in (MOST_ROWS, 4, 2, 1):
        parts = list(_markdown(document, rows))
        if rows < MOST_ROWS:
            parts.append("_Cut to fit a comment: the HTML and JSON reports hold all._")
        text = lead + "\n\n".join([*parts, *([link] if link else [])]) + "\n"
        if len(text) <= limit:
            return text
    return f"{lead}### perfscope: {_mark(document)} {document.headline}\n\n_Too large for a comment._\n{link}\n"


def _mark(document: Document) -> str:
    return MARKS[TONES.get(document.headline, "plain")]


def _quiet(document: Document) -> str:
    texts = [summary_line(document)]
    by_time = sum(finding.change != "unchanged" for finding in document.findings)
    if by_time:
        texts.append(f"{by_time} finding{'' if by_time == 1 else 's'} changed ({BY_TIME})")
    if document.not_looked:
        texts.append(f"{len(document.not_looked)} could not be compared")
    sides = " → ".join(map(code, short_titles(document)))
    return f"{_mark(document)} **perfscope: {document.headline}** · {inline('; '.join(texts))} · {sides}"


def _markdown(document: Document, rows: int) -> Iterator[str]:
    yield f"### perfscope: {_mark(document)} {document.headline}: {inline(summary_line(document))}"
    facts = [" → ".join(code(name) for name in short_titles(document))]
    if document.method.pairs:
        facts.append(pair_words(document.method))
    for name, text in environment(document)[:FEW_FACTS]:
        facts.append(inline(sanitize(text if name == "device" else f"{name} {text}")))
    yield " · ".join(facts)
    for line in document.cautions[:rows]:
        yield f"**Caution:** {inline(sanitize(line))}"
    for line in document.failed[:rows]:
        yield f"**Gate not met:** {inline(sanitize(line))}"
    for section in compare_sections(document):
        yield open_section(section, min(rows, OPEN_ROWS))
    yield sections_markdown(detail_sections(document), rows)


def render_html(document: Document) -> str:
    """Return the whole page. Every text is escaped; the content policy forbids any request."""
    return page(
        _page(document),
        title=headline(document),
        data_id="perfscope-comparison",
        data=embedded(document),
    )


def _page(document: Document) -> Iterator[str]:
    facts = [sanitize(document.method.kind), *([pair_words(document.method)] if document.method.pairs else [])]
    facts += [sanitize(text) for name, text in environment(document) if name == "device"]
    yield f"<header><h1><b>perfscope</b> <span>{escape(' → '.join(short_titles(document)))}</span></h1>"
    yield f'<p class="sub">{escape(" · ".join(facts))}</p></header>'
    yield from sections_html((*caution_sections(document), verdict_section(document)))
    yield from sections_html((*compare_sections(document), *detail_sections(document)))
    origin = f"perfscope {package_version()}. This file loads nothing."
    yield f"<footer>{escape(origin)}</footer>"


def embedded(document: Document) -> str:
    """The document as JSON for a ``<script>`` block, without ``<``. For a large document only its headline."""
    values = {"schema": document.schema, "headline": document.headline, "left_out": "too large; --json writes it"}
    if len(msgspec.json.encode(document)) <= MOST_EMBEDDED:
        values = msgspec.to_builtins(document)
    text = json.dumps(sanitize_value(values), separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
