"""Pull requests of GitHub and GitHub Enterprise Server by REST; the token's user by GraphQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct

from perfscope.model.errors import DataError, UsageError
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.code_hosts.client import Client, HostError, checked_token
from perfscope.plugins.code_hosts.sticky import Comment

API = "https://api.github.com"
GRAPHQL = "https://api.github.com/graphql"
VERSION = "2022-11-28"

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*/(?!\.{1,2}$)[A-Za-z0-9._-]+")
_MISSING = {
    401: "the token is invalid or expired",
    403: "the token lacks permission: the job needs `permissions: pull-requests: write`, which the token of a pull "
    "request from a fork never has (docs/ci.md, two jobs)",
    404: "no such pull request, or the token cannot access the repository (`permissions: pull-requests: write`)",
    410: "comments are switched off there",
}


class GitHub(Struct, frozen=True, kw_only=True):
    """One repository, accessed with one token."""

    limit: ClassVar[int] = 60_000
    """Most characters of a comment; GitHub's own limit is 65,536."""

    rest: Client
    graphql: Client
    repository: str

    @classmethod
    def connect(
        cls,
        *,
        token: str,
        repository: str,
        api: str | None = None,
        graphql: str | None = None,
        variable: str = "GITHUB_TOKEN",
    ) -> GitHub:
        """``api`` and ``graphql``: addresses of the APIs (default github.com's; GraphQL's is derived from ``api``)."""
        check_repository(repository)
        headers = {
            "Authorization": f"Bearer {checked_token(token, variable)}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": VERSION,
        }
        api = (api or API).rstrip("/")
        return cls(
            rest=Client(host="GitHub", base=api, headers=headers, missing=_MISSING),
            graphql=Client(host="GitHub", base=graphql or graphql_address(api), headers=headers, missing=_MISSING),
            repository=repository,
        )

    def myself(self) -> str:
        """The token's login. A job's token has no user (``GET /user`` is refused), but GraphQL has its viewer."""
        try:
            reply = self.graphql.request("POST", "", payload={"query": "query { viewer { login } }"}, again=True)
            login = reply.value["data"]["viewer"]["login"]
        except (KeyError, TypeError, HostError) as error:
            if isinstance(error, HostError) and error.status not in (403, 404):
                raise
            return self.rest.user("login")
        if not isinstance(login, str):
            self.graphql.unexpected("/graphql")
        return login

    def comments(self, change: int) -> Iterator[Comment]:
        """All comments of a pull request, oldest first."""
        path = f"/repos/{self.repository}/issues/{change}/comments"
        for row in self.rest.rows(path):
            yield self.rest.taken(row, path, _comment)

    def create(self, change: int, body: str) -> Comment:
        """Create a comment."""
        path = f"/repos/{self.repository}/issues/{change}/comments"
        return self.rest.write("POST", path, body, _comment, again=False)

    def update(self, change: int, comment: Comment, body: str) -> Comment:
        """Replace the text of a comment."""
        path = f"/repos/{self.repository}/issues/comments/{comment.number}"
        return self.rest.write("PATCH", path, body, _comment, again=True)

    def pull_of(self, *, sha: str, owner: str, branch: str, head_repository: str) -> int | None:
        """The open pull request whose last commit is ``sha``; ``None`` if none is (closed, or it has new commits).

        Found by branch, because a fork's commits are not in this repository (``/commits/SHA/pulls`` does not list
        them); commit and repository are compared with the run's. ``HostError`` if several pull requests have that
        commit.
        """
        path = f"/repos/{self.repository}/pulls"
        result = []
        for row in self.rest.rows(path, {"state": "open", "head": f"{owner}:{branch}"}):
            number, head_sha, head_name = self.rest.taken(row, path, _head)
            if head_sha == sha and head_name == head_repository:
                result.append(number)
        if len(result) > 1:
            named = ", ".join(f"#{number}" for number in result)
            raise HostError(f"GitHub: {named} all end with {sha[:12]}; choose one with --pr")
        return result[0] if result else None


def check_repository(repository: str) -> None:
    """``UsageError`` unless it has the form ``OWNER/NAME``."""
    if _REPOSITORY.fullmatch(repository) is None:
        raise UsageError(f"{sanitize(repository)}: a repository must be OWNER/NAME")


def graphql_address(api: str) -> str:
    """GraphQL's address: ``/graphql`` on github.com; on an own server ``/api/graphql``, next to ``/api/v3``."""
    return f"{api.removesuffix('/v3')}/graphql" if api.endswith("/api/v3") else f"{api}/graphql"


def _comment(row: Mapping[str, Any]) -> Comment:
    # The user of a deleted account is null.
    author = row["user"]["login"] if row["user"] is not None else ""
    return Comment(number=int(row["id"]), author=str(author), body=str(row["body"] or ""), place=str(row["html_url"]))


def _head(row: Mapping[str, Any]) -> tuple[int, str, str]:
    # The repository of a deleted fork is null.
    repository = row["head"]["repo"]
    return int(row["number"]), str(row["head"]["sha"]), "" if repository is None else str(repository["full_name"])


# Find the pull request of a GitHub job from the event that started it.


MOST_BYTES = 64 << 20
"""Most bytes of an event; GitHub's limit is 25 MB."""
_REF = re.compile(r"refs/pull/([1-9][0-9]{0,9})/(?:merge|head)")


class Run(Struct, frozen=True, kw_only=True):
    """A finished run of another workflow: its commit, branch and repository."""

    sha: str
    owner: str
    branch: str
    repository: str
    of_pull_request: bool


class Event(Struct, frozen=True, kw_only=True):
    """``number`` of the pull request, or the ``run`` (`workflow_run`) whose commit leads to it.

    ``foreign``: its commits are in another repository (a fork); ``None`` if the event lacks this.
    """

    number: int | None = None
    run: Run | None = None
    foreign: bool | None = None


def read_event(path: str | None, ref: str | None) -> Event:
    """Read the event in the file of ``GITHUB_EVENT_PATH``, else use ``GITHUB_REF`` (``refs/pull/7/merge``).

    GitHub wrote the file; no text of a report is in it. ``DataError`` if it cannot be read.
    """
    event = Event() if path is None else _event(_read(path), path)
    if event.number is None and event.run is None and ref is not None:
        match = _REF.fullmatch(ref)
        if match is not None:
            return Event(number=int(match[1]), foreign=event.foreign)
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
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: the event is not JSON") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: the event is not a JSON object")
    return value


def _event(event: Mapping[str, Any], path: str) -> Event:
    try:
        if "workflow_run" in event:
            return Event(run=_run(event["workflow_run"]))
        if "pull_request" in event:
            pull = event["pull_request"]
            # The repository of a deleted fork is null: foreign too.
            head = (pull["head"]["repo"] or {}).get("full_name")
            return Event(number=int(pull["number"]), foreign=head != pull["base"]["repo"]["full_name"])
        if "issue" in event and "pull_request" in event["issue"]:
            return Event(number=int(event["issue"]["number"]))
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
