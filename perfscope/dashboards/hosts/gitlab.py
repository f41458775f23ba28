"""Merge requests of GitLab, by its REST API, version 4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import quote

from perfscope.dashboards.hosts.client import Client, checked_token
from perfscope.dashboards.hosts.sticky import Comment
from perfscope.model.errors import UsageError
from perfscope.model.untrusted_text import sanitize

API = "https://gitlab.com/api/v4"

_MISSING = {
    401: "the token is not valid, or no longer; a job's own token (CI_JOB_TOKEN) cannot write notes: GITLAB_TOKEN is "
    "a project access token",
    403: "the token may not do that: it needs the scope `api` and the role Reporter",
    404: "no such merge request, or a token that may not see the project (scope `api`, role Reporter)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GitLab:
    """One project, seen with one token; ``web``: its address in a browser, empty if not known."""

    limit: ClassVar[int] = 1_000_000
    """Characters; also GitLab's own limit of a note."""

    rest: Client
    project: str
    web: str = ""

    @classmethod
    def connect(
        cls, *, token: str, project: str, api: str | None = None, web: str = "", variable: str = "GITLAB_TOKEN"
    ) -> GitLab:
        """``project``: its number, or its path."""
        if not project or not project.isprintable():
            raise UsageError(f"{sanitize(project)}: a project is its number, or GROUP/NAME")
        headers = {"PRIVATE-TOKEN": checked_token(token, variable)}
        client = Client(host="GitLab", base=(api or API).rstrip("/"), headers=headers, missing=_MISSING)
        return cls(rest=client, project=project, web=web.rstrip("/"))

    def myself(self) -> str:
        """The user of the token; a project access token has a bot's."""
        name = self.rest.taken(self.rest.ask("GET", "/user", again=True).value, "/user", lambda row: row["username"])
        if not isinstance(name, str):
            self.rest.unexpected("/user")
        return name

    def comments(self, change: int) -> Iterator[Comment]:
        """All notes of people and bots on a merge request, oldest first."""
        path = self._notes(change)
        for row in self.rest.rows(path, {"sort": "asc", "order_by": "created_at"}):
            if not row.get("system"):
                yield self.rest.taken(row, path, lambda row: self._comment(change, row))

    def create(self, change: int, body: str) -> Comment:
        """A new note."""
        path = self._notes(change)
        reply = self.rest.ask("POST", path, payload={"body": body}, again=False)
        return self.rest.taken(reply.value, path, lambda row: self._comment(change, row))

    def update(self, change: int, comment: Comment, body: str) -> Comment:
        """The note with another text."""
        path = f"{self._notes(change)}/{comment.number}"
        reply = self.rest.ask("PUT", path, payload={"body": body}, again=True)
        return self.rest.taken(reply.value, path, lambda row: self._comment(change, row))

    def _notes(self, change: int) -> str:
        return f"/projects/{quote(self.project, safe='')}/merge_requests/{change}/notes"

    def _comment(self, change: int, row: Mapping[str, Any]) -> Comment:
        number = int(row["id"])
        url = f"{self.web}/-/merge_requests/{change}#note_{number}" if self.web else ""
        return Comment(number=number, author=str(row["author"]["username"]), body=str(row["body"] or ""), place=url)
