"""Merge requests of GitLab, by its REST API, version 4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar
from urllib.parse import quote

from msgspec import Struct

from perfscope.model.errors import UsageError
from perfscope.model.untrusted_text import sanitize
from perfscope.plugins.code_hosts.client import Client, checked_token
from perfscope.plugins.code_hosts.sticky import Comment

API = "https://gitlab.com/api/v4"

_MISSING = {
    401: "the token is invalid or expired; a job's own token (CI_JOB_TOKEN) cannot write notes: set GITLAB_TOKEN to "
    "a project access token",
    403: "the token lacks permission: it needs the scope `api` and the role Reporter",
    404: "no such merge request, or the token cannot access the project (scope `api`, role Reporter)",
}


class GitLab(Struct, frozen=True, kw_only=True):
    """One project, accessed with one token; ``web``: its address in a browser, empty if unknown."""

    limit: ClassVar[int] = 1_000_000
    """Most characters of a note; also GitLab's own limit."""

    rest: Client
    project: str
    web: str = ""

    @classmethod
    def connect(
        cls, *, token: str, project: str, api: str | None = None, web: str = "", variable: str = "GITLAB_TOKEN"
    ) -> GitLab:
        """``project``: its number, or its path."""
        if not project or not project.isprintable():
            raise UsageError(f"{sanitize(project)}: a project must be its number or GROUP/NAME")
        headers = {"PRIVATE-TOKEN": checked_token(token, variable)}
        client = Client(host="GitLab", base=(api or API).rstrip("/"), headers=headers, missing=_MISSING)
        return cls(rest=client, project=project, web=web.rstrip("/"))

    def myself(self) -> str:
        """The token's user; a project access token has a bot user."""
        return self.rest.user("username")

    def comments(self, change: int) -> Iterator[Comment]:
        """All notes of people and bots on a merge request, oldest first."""
        path = self._notes(change)
        for row in self.rest.rows(path, {"sort": "asc", "order_by": "created_at"}):
            if not row.get("system"):
                yield self.rest.taken(row, path, partial(self._comment, change))

    def create(self, change: int, body: str) -> Comment:
        """Create a note."""
        return self.rest.write("POST", self._notes(change), body, partial(self._comment, change), again=False)

    def update(self, change: int, comment: Comment, body: str) -> Comment:
        """Replace the text of a note."""
        path = f"{self._notes(change)}/{comment.number}"
        return self.rest.write("PUT", path, body, partial(self._comment, change), again=True)

    def _notes(self, change: int) -> str:
        return f"/projects/{quote(self.project, safe='')}/merge_requests/{change}/notes"

    def _comment(self, change: int, row: Mapping[str, Any]) -> Comment:
        number = int(row["id"])
        url = f"{self.web}/-/merge_requests/{change}#note_{number}" if self.web else ""
        return Comment(number=number, author=str(row["author"]["username"]), body=str(row["body"] or ""), place=url)
