"""The single comment of a change: found by its first line and author and replaced, or created."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, Protocol

from msgspec import Struct

from perfscope.dashboards.report.compare.render import marker
from perfscope.plugins.code_hosts.client import HostTroubleError

MOST_POSTS = 3
"""Attempts to create a comment. Before each it is searched for, because a failed request may have created it."""

_MARKER = re.compile(r"\s*<!-- perfscope-report:[^\n]*-->[^\n]*\n?")
_COMMAND = re.compile(r"(?m)^([ \t]*)/")
"""Start of a line that is a command to GitLab (``/merge``) and to many bots (``/lgtm``)."""
_CUT = "\n\n*Cut here: a comment cannot hold more. The whole report is in the job's artifact.*\n"


class Comment(Struct, frozen=True, kw_only=True):
    """A comment as the host lists it; ``place`` is its address in a browser, empty if unknown."""

    number: int
    author: str
    body: str
    place: str


class Posted(Struct, frozen=True, kw_only=True):
    """The outcome; ``twins``: other comments with the same key and author, left unchanged."""

    done: Literal["created", "updated", "unchanged"]
    place: str
    twins: int


class CodeHost(Protocol):
    """The methods of a host that posting needs. Each raises ``HostError``; ``change`` is the number of the PR or MR."""

    @property
    def limit(self) -> int:
        """Most characters of a comment."""

    def myself(self) -> str:
        """The name under which the token's comments appear."""

    def comments(self, change: int) -> Iterable[Comment]:
        """All comments, oldest first."""

    def create(self, change: int, body: str) -> Comment:
        """Create a comment; ``HostTroubleError`` if it may or may not exist now."""

    def update(self, change: int, comment: Comment, body: str) -> Comment:
        """Replace the text of a comment."""


def compose(text: str, key: str, limit: int, link: str | None = None) -> str:
    """The comment, at most ``limit`` characters: marker, ``text`` without lines that are commands to a bot, link.

    An existing marker in the text is replaced.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _COMMAND.sub(r"\1&#47;", _MARKER.sub("", text, count=1) if _MARKER.match(text) else text)
    end = "" if link is None else f"\n\n[full report]({link})\n"
    return f"{marker(key)}\n{_fitted(text.rstrip(), limit - len(marker(key)) - 1 - len(end))}{end}"


def _fitted(text: str, limit: int) -> str:
    """``text`` cut at the end of a line, with open blocks closed and a note."""
    if len(text) <= limit:
        return text
    kept = text[: limit - len(_CUT) - len("\n```") - 40 * len("\n</details>")]
    kept = kept[: kept.rfind("\n")] if "\n" in kept else kept
    if sum(line.lstrip().startswith("```") for line in kept.split("\n")) % 2:
        kept += "\n```"
    still_open = min(40, max(0, kept.count("<details") - kept.count("</details>")))
    return kept + "\n</details>" * still_open + _CUT.rstrip("\n")


def post(host: CodeHost, change: int, key: str, body: str) -> Posted:
    """Create or update the change's comment with that key so that it contains ``body``.

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
    """Normalise line ends and the final newline, which hosts change."""
    return body.replace("\r\n", "\n").strip()
