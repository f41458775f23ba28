"""A message of one screen to a webhook, as Slack, Mattermost and Google Chat take it: ``{"text": ...}``.

With ``--every`` a message is sent when a rank stalls, a process is killed, a save fails, the step time changes, and
when the job has ended; else one message with the state of the job. The address is a secret: errors have the host only.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from perfscope.model.documents.run import list_numbers
from perfscope.model.errors import DataError, UsageError
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.job.outlets import Moment
from perfscope.plugins.job.rank import Event
from perfscope.plugins.job.rank_sections import change_fact, hang_fact
from perfscope.plugins.job.report import report_of

TIMEOUT_S = 5.0
MOST_LINES, LINE_LIMIT = 12, 240
"""Size of a message: the screen of a phone."""
FROM_ENVIRONMENT = "env:"
TOLD = {
    "stalled": "no step ends",
    "killed": "a process was killed",
    "failed save": "a save failed",
    "failed restore": "a restore failed",
}
"""Kinds of events that are worth a message."""


class Webhook:
    """A receiver of messages."""

    def __init__(self, address: str, *, follows: bool) -> None:
        """``address``: URL, or ``env:NAME`` of a variable that has it. ``follows``: whether moments come repeatedly.

        ``UsageError`` if it is not an address of http or https.
        """
        url = (
            os.environ.get(address.removeprefix(FROM_ENVIRONMENT), "")
            if address.startswith(FROM_ENVIRONMENT)
            else address
        )
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            parts, host = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not host:
            shown = address if address.startswith(FROM_ENVIRONMENT) else "its value"
            raise UsageError(f"--webhook: {shown} is not an address that begins with https:// or http://")
        self._url, self._host, self._follows = url, host, follows
        self._known: set[Any] | None = None
        """Keys of the news that were sent or that the first moment had."""

    def send(self, moment: Moment) -> None:
        """Post a message if there is news; ``DataError`` if the receiver refuses or does not answer in time."""
        news = dict(_news(moment))
        if self._known is None and self._follows:
            self._known = {key for key in news if key != "end"}
        fresh = [line for key, line in news.items() if key not in (self._known or ())]
        if not fresh and self._follows:
            return
        self._post(message(moment, fresh if self._follows else fresh[-1:]))
        self._known = (self._known or set()) | news.keys()

    def close(self) -> None:
        """Each message is sent at once."""

    def _post(self, text: str) -> None:
        request = urllib.request.Request(  # noqa: S310 (checked above)
            self._url,
            data=json.dumps({"text": text}).encode(),
            headers={"Content-Type": "application/json", "User-Agent": "perfscope"},
        )
        try:
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT_S):
                return
        except urllib.error.HTTPError as error:
            raise DataError(f"--webhook {self._host}: the receiver answered {error.code}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", error)
            why = getattr(reason, "strerror", None) or type(reason).__name__
            raise DataError(f"--webhook {self._host}: no answer: {why}") from None


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A message goes to the address that the user gave."""

    def redirect_request(self, *_: Any) -> None:
        return None


def message(moment: Moment, news: list[str]) -> str:
    """The news and the state of a job, in plain lines."""
    report = report_of(moment.account)
    facts = [report.headline, *report.facts]
    room = MOST_LINES - len(facts) - 1
    more = [f"and {len(news) - room:,} more"] if len(news) > room else []
    lines = [*(f"{moment.job}: {line}" for line in news[:room]), *more, *facts]
    return "\n".join(sanitize(line, LINE_LIMIT) for line in lines if line)


def _news(moment: Moment) -> Iterator[tuple[Any, str]]:
    """Everything that is worth a message: (key, line); events of one kind and second on several ranks are one."""
    together: dict[tuple[str, int], list[Event]] = {}
    for event in moment.account.events:
        if event.kind in TOLD:
            together.setdefault((event.kind, event.unix_ns // 60_000_000_000), []).append(event)
    for (kind, minute), events in together.items():
        yield (kind, minute), _line(kind, events)
    for hang in moment.account.hangs:
        if hang.missing:
            yield ("hang", hang.unix_ns // 60_000_000_000), hang_fact(hang)
    for change in moment.account.changes:
        yield ("change", change.rank, change.unix_ns // 60_000_000_000), change_fact(change)
    if not moment.running:
        yield "end", "the job has ended"


def _line(kind: str, events: list[Event]) -> str:
    ranks = sorted({event.rank for event in events if event.rank is not None})
    whose = f" on {list_numbers('rank', ranks)}" if ranks else ""
    line = next((event.line for event in events if event.line), "")
    return f"{TOLD[kind]}{whose} since {_clock(min(event.unix_ns for event in events))}{f' at {line}' if line else ''}"


def _clock(unix_ns: int) -> str:
    return f"{datetime.fromtimestamp(unix_ns / 1e9, UTC):%m-%d %H:%M:%S}"
