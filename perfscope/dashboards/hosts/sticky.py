"""The one comment of a change: found by its first line and its author, then replaced; made where there is none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from perfscope.dashboards.hosts.client import HostTroubleError
from perfscope.dashboards.report.compare.render import marker

MOST_POSTS = 3
"""Times a new comment is tried. Between two it is looked for: a server that broke may have made it all the same."""

_MARKER = re.compile(r"\s*<!-- perfscope-report:[^\n]*-->[^\n]*\n?")
_COMMAND = re.compile(r"(?m)^([ \t]*)/")
"""A line of a comment that begins so is an order to GitLab (``/merge``) and to many bots (``/lgtm``)."""
_CUT = "\n\n*Cut here: a comment holds no more. The whole report is in the job's artifact.*\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comment:
    """A comment as the host lists it; ``place`` is its address in a browser, empty where the host does not say."""

    number: int
    author: str
    body: str
    place: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Posted:
    """What was done; ``twins``: further comments of the same key and author, left as they are."""

    done: Literal["created", "updated", "unchanged"]
    place: str
    twins: int


class CodeHost(Protocol):
    """What posting needs of a host. Each method raises ``HostError``; ``change`` is the number of the PR or MR."""

    @property
    def limit(self) -> int:
        """Characters of a comment."""

    def myself(self) -> str:
        """The name under which the token's comments appear."""

    def comments(self, change: int) -> Iterable[Comment]:
        """All comments, oldest first."""

    def create(self, change: int, body: str) -> Comment:
        """A new comment; ``HostTroubleError`` where it may or may not be there now."""

    def update(self, change: int, comment: Comment, body: str) -> Comment:
        """The comment with another text."""


def compose(text: str, key: str, limit: int, link: str | None = None) -> str:
    """The comment, at most ``limit`` characters: its marker, ``text`` with no line that is an order to a bot, a link.

    A marker that the text already has is replaced.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _COMMAND.sub(r"\1&#47;", _MARKER.sub("", text, count=1) if _MARKER.match(text) else text)
    end = "" if link is None else f"\n\n[full report]({link})\n"
    return f"{marker(key)}\n{_fitted(text.rstrip(), limit - len(marker(key)) - 1 - len(end))}{end}"


def _fitted(text: str, limit: int) -> str:
    """``text`` cut at the end of a line, what it left open closed, and said."""
    if len(text) <= limit:
        return text
    kept = text[: limit - len(_CUT) - len("\n```") - 40 * len("\n</details>")]
    kept = kept[: kept.rfind("\n")] if "\n" in kept else kept
    if sum(line.lstrip().startswith("```") for line in kept.split("\n")) % 2:
        kept += "\n```"
    still_open = min(40, max(0, kept.count("<details") - kept.count("</details>")))
    return kept + "\n</details>" * still_open + _CUT.rstrip("\n")


def post(host: CodeHost, change: int, key: str, body: str) -> Posted:
    """Make the change's comment of that key say ``body``.

    Only a comment of the same author is replaced: anyone can write the marker, and a token that may write comments
    may often edit those of others.
    """
    me = host.myself()
    for attempt in range(MOST_POSTS):
        ours = [
            comment
            for comment in host.comments(change)
            if comment.author == me and _first_line(comment.body) == marker(key)
        ]
        if ours:
            if _plain(ours[0].body) == _plain(body):
                return Posted(done="unchanged" if attempt == 0 else "created", place=ours[0].place, twins=len(ours) - 1)
            comment = host.update(change, ours[0], body)
            return Posted(done="updated", place=comment.place, twins=len(ours) - 1)
        try:
            return Posted(done="created", place=host.create(change, body).place, twins=0)
        except HostTroubleError:
            if attempt == MOST_POSTS - 1:
                raise
    raise AssertionError("unreachable")


def _first_line(body: str) -> str:
    return body.lstrip("\ufeff").partition("\n")[0].strip()


def _plain(body: str) -> str:
    """Hosts store lines with other ends, and without the last one."""
    return body.replace("\r\n", "\n").strip()
