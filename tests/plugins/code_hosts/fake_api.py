"""GitHub's and GitLab's APIs for the tests, as far as posting needs them: a server on this machine."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "a-token-of-the-tests"
BOT = "github-actions[bot]"
GITLAB_BOT = "project_7_bot_1"
REPOSITORY = "octo/model"
PROJECT = "7"
PAGE = 100

Answer = tuple[int, Any, dict[str, str]]


@dataclass(slots=True)
class RecordedRequest:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    payload: Any


@dataclass(slots=True)
class Fake:
    """The state behind the API. ``broken`` replaces its answers, each once, from the first on; ``None`` does not."""

    base: str = ""
    comments: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    pulls: list[dict[str, Any]] = field(default_factory=list)
    seen: list[RecordedRequest] = field(default_factory=list)
    broken: list[Callable[[RecordedRequest], Answer | None]] = field(default_factory=list)
    numbers: int = 1000

    def add(self, change: int, author: str, body: str, **more: Any) -> dict[str, Any]:
        """A comment as both hosts list it."""
        self.numbers += 1
        row = {
            "id": self.numbers,
            "user": {"login": author},
            "author": {"username": author},
            "system": False,
            "body": body,
            "html_url": f"{self.base}/{REPOSITORY}/pull/{change}#issuecomment-{self.numbers}",
            **more,
        }
        self.comments.setdefault(change, []).append(row)
        return row

    def bodies(self, change: int, author: str) -> list[str]:
        """The texts of an author, oldest first."""
        return [row["body"] for row in self.comments.get(change, []) if author == row["user"]["login"]]

    def asked(self, method: str) -> list[RecordedRequest]:
        """The requests of a method, without GraphQL's."""
        return [one for one in self.seen if one.method == method and one.path != "/graphql"]

    def answer(self, request: RecordedRequest) -> Answer:
        """The host's answer."""
        if self.broken:
            planned = self.broken.pop(0)(request)
            if planned is not None:
                return planned
        gitlab = request.path.startswith("/api/v4/")
        given = request.headers.get("private-token" if gitlab else "authorization")
        if given != (TOKEN if gitlab else f"Bearer {TOKEN}"):
            return 401, {"message": "Bad credentials"}, {}
        return self._gitlab(request) if gitlab else self._github(request)

    def _github(self, request: RecordedRequest) -> Answer:
        if request.path == "/graphql":
            assert request.payload == {"query": "query { viewer { login } }"}
            return 200, {"data": {"viewer": {"login": BOT}}}, {}
        if request.path == f"/repos/{REPOSITORY}/pulls":
            head = request.query["head"]
            found = [
                row for row in self.pulls if row["head"]["label"] == head and row["state"] == request.query["state"]
            ]
            return self._page(request, found)
        listed = re.fullmatch(rf"/repos/{REPOSITORY}/issues/(\d+)/comments", request.path)
        if listed is not None:
            return self._listed(request, int(listed[1]), BOT, 65_536)
        edited = re.fullmatch(rf"/repos/{REPOSITORY}/issues/comments/(\d+)", request.path)
        if edited is not None and request.method == "PATCH":
            return self._edited(int(edited[1]), request.payload["body"])
        # A job's token has no user: GET /user is refused.
        return (403, {"message": "Resource not accessible by integration"}, {}) if request.path == "/user" else MISSING

    def _gitlab(self, request: RecordedRequest) -> Answer:
        if request.path == "/api/v4/user":
            return 200, {"username": GITLAB_BOT}, {}
        listed = re.fullmatch(rf"/api/v4/projects/{PROJECT}/merge_requests/(\d+)/notes", request.path)
        if listed is not None:
            return self._listed(request, int(listed[1]), GITLAB_BOT, 1_000_000)
        edited = re.fullmatch(rf"/api/v4/projects/{PROJECT}/merge_requests/(\d+)/notes/(\d+)", request.path)
        if edited is not None and request.method == "PUT":
            return self._edited(int(edited[2]), request.payload["body"])
        return MISSING

    def _listed(self, request: RecordedRequest, change: int, author: str, limit: int) -> Answer:
        if request.method == "GET":
            return self._page(request, self.comments.get(change, []))
        body = request.payload["body"]
        if len(body) > limit:
            return 422, {"message": "body is too long"}, {}
        return 201, self.add(change, author, body), {}

    def _edited(self, number: int, body: str) -> Answer:
        for row in [row for rows in self.comments.values() for row in rows]:
            if row["id"] == number:
                row["body"] = body
                return 200, row, {}
        return MISSING

    def _page(self, request: RecordedRequest, rows: list[dict[str, Any]]) -> Answer:
        assert request.query["per_page"] == str(PAGE)
        page = int(request.query["page"])
        more = len(rows) > page * PAGE
        link = {"Link": f'<{self.base}{request.path}?page={page + 1}>; rel="next"'} if more else {}
        return 200, rows[(page - 1) * PAGE : page * PAGE], link


MISSING: Answer = (404, {"message": "Not Found"}, {})


@contextmanager
def serve_fake() -> Iterator[Fake]:
    """The fake, listening on a free port of this machine."""
    fake = Fake()

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length", 0))
            request = RecordedRequest(
                method=self.command,
                path=url.path,
                query={name: values[0] for name, values in parse_qs(url.query).items()},
                headers={name.lower(): value for name, value in self.headers.items()},
                payload=json.loads(self.rfile.read(length)) if length else None,
            )
            fake.seen.append(request)
            status, value, headers = fake.answer(request)
            content = value if isinstance(value, bytes) else json.dumps(value).encode()
            self.send_response(status)
            for name, held in headers.items():
                self.send_header(name, held)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    for method in ("GET", "POST", "PATCH", "PUT"):
        setattr(Handler, f"do_{method}", Handler._any)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.base = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def github_job(fake: Fake, **more: str) -> dict[str, str]:
    """GitHub's variables for a job on its repository and API; the event is the test's."""
    return {
        "GITHUB_ACTIONS": "true",
        "GITHUB_REPOSITORY": REPOSITORY,
        "GITHUB_API_URL": fake.base,
        "GITHUB_GRAPHQL_URL": f"{fake.base}/graphql",
        **more,
    }


def gitlab_job(fake: Fake, **more: str) -> dict[str, str]:
    """GitLab's variables for a job in a merge request's pipeline."""
    return {
        "GITLAB_CI": "true",
        "CI_API_V4_URL": f"{fake.base}/api/v4",
        "CI_PROJECT_ID": PROJECT,
        "CI_PROJECT_URL": f"{fake.base}/group/model",
        "CI_MERGE_REQUEST_IID": "12",
        **more,
    }


def pull(
    number: int, sha: str, *, owner: str = "someone", branch: str = "faster", state: str = "open"
) -> dict[str, Any]:
    """A pull request as GitHub lists it."""
    repository = {"full_name": f"{owner}/{REPOSITORY.split('/')[1]}"}
    return {"number": number, "state": state, "head": {"sha": sha, "label": f"{owner}:{branch}", "repo": repository}}
