"""Markdown as GitHub renders it: cmark-gfm, raw HTML let through, and what GitHub's later filters would link."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import cmarkgfm
from cmarkgfm.cmark import Options
from markdown_it import MarkdownIt

VOID = frozenset({"br", "hr", "img", "input"})
NEVER_LINKED = frozenset({"a", "code", "pre"})
"""GitHub's filters for mentions and references leave these alone."""

MENTION = re.compile(r"(?<![\w/])@[A-Za-z0-9]")
REFERENCE = re.compile(r"#\d|(?i:\bGH-\d)|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b")
ADDRESS = re.compile(r"(?i)\w://|\bwww\.\w")


class Rendered(HTMLParser):
    """Tags in order with attributes, and texts by whether a filter would look at them."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.comments: list[str] = []
        self.texts: list[str] = []
        """Outside code and links."""
        self.code: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == [], self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, key, value) for key, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.code if NEVER_LINKED & set(self._open) else self.texts).append(data)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    def linked(self) -> list[str]:
        """Texts that GitHub would turn into a mention, a reference or a link."""
        found = []
        for text in self.texts:
            for pattern in (MENTION, REFERENCE, ADDRESS):
                found += [match[0] for match in pattern.finditer(text)]
        return found


def github(text: str) -> Rendered:
    """As GitHub parses it."""
    return Rendered(cmarkgfm.github_flavored_markdown_to_html(text, Options.CMARK_OPT_UNSAFE))


def commonmark(text: str) -> Rendered:
    """As another parser of CommonMark with tables reads it."""
    return Rendered(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text))
