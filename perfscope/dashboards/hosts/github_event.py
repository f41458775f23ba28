"""Which pull request a job of GitHub is about: what the event that started it says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfscope.model.errors import DataError

MOST_BYTES = 64 << 20
"""Of an event; GitHub caps payloads at 25 MB."""
_REF = re.compile(r"refs/pull/([1-9][0-9]{0,9})/(?:merge|head)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The run of another workflow that has ended: whose commit, of which branch of which repository."""

    sha: str
    owner: str
    branch: str
    repository: str
    of_pull_request: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """``number`` of the pull request, or the ``run`` (`workflow_run`) by whose commit it is to be found.

    ``foreign``: its commits are in another repository (a fork); ``None`` where the event does not say.
    """

    number: int | None = None
    run: Run | None = None
    foreign: bool | None = None


def read_event(path: str | None, ref: str | None) -> Event:
    """The event in the file of ``GITHUB_EVENT_PATH``, else what ``GITHUB_REF`` (``refs/pull/7/merge``) says.

    GitHub wrote the file; nothing in it is from a report. ``DataError`` if it cannot be read.
    """
    event = Event() if path is None else _event(_read(path), path)
    if event.number is None and event.run is None and ref is not None:
        found = _REF.fullmatch(ref)
        if found is not None:
            return Event(number=int(found[1]), foreign=event.foreign)
    return event


def _read(path: str) -> Mapping[str, Any]:
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path}: the event cannot be read: {error.strerror or error}") from error
    if len(content) > MOST_BYTES:
        raise DataError(f"{path}: an event of more than {MOST_BYTES >> 20} MiB")
    try:
        held = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: the event is no JSON") from error
    if not isinstance(held, dict):
        raise DataError(f"{path}: the event is no JSON object")
    return held


def _event(held: Mapping[str, Any], path: str) -> Event:
    try:
        if "workflow_run" in held:
            return Event(run=_run(held["workflow_run"]))
        if "pull_request" in held:
            pull = held["pull_request"]
            # The repository of a fork that is gone is null: foreign too.
            head = (pull["head"]["repo"] or {}).get("full_name")
            return Event(number=int(pull["number"]), foreign=head != pull["base"]["repo"]["full_name"])
        if "issue" in held and "pull_request" in held["issue"]:
            return Event(number=int(held["issue"]["number"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: not an event as GitHub writes them") from error
    return Event()


def _run(run: Mapping[str, Any]) -> Run:
    head = run["head_repository"]
    return Run(
        sha=str(run["head_sha"]),
        owner=str(head["owner"]["login"]),
        branch=str(run["head_branch"]),
        repository=str(head["full_name"]),
        of_pull_request=run["event"] == "pull_request",
    )
