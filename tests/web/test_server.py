"""Who may ask: each refusal with the smallest difference to what is answered."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import signal
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from flask import Flask

from perfscope.commands import serve
from perfscope.dashboards.web.server import viewer
from perfscope.dashboards.web.server.guard import MOST_BODY_BYTES, MOST_QUERY, Guard, hosts_of
from perfscope.dashboards.web.server.late import Late
from perfscope.dashboards.web.server.shelf import KEY, Shelf
from perfscope.model.errors import DataError, UsageError

TOKEN = "0123456789abcdef0123456789abcdef"


def _client(
    token: str | None = TOKEN, *, base_path: str = "/", host: str = "127.0.0.1", more: tuple[str, ...] = ()
) -> Any:
    server = Flask("test")

    @server.route("/", methods=["GET", "POST"])
    @server.route("/page", methods=["GET", "POST"])
    def page() -> str:
        from flask import request

        request.get_data()
        return "told"

    Guard(token=token, hosts=hosts_of(host, more), base_path=base_path).install(server)
    return server.test_client()


def _get(client: Any, path: str = "/page", **headers: str) -> Any:
    return client.get(path, headers={"Host": "127.0.0.1:8765", **headers})


def test_the_token_opens_a_session_and_leaves_the_address() -> None:
    client = _client()
    answer = _get(client, f"/page?token={TOKEN}&run=a%20b")
    assert answer.status_code == HTTPStatus.FOUND
    assert answer.headers["Location"] == "/page?run=a+b"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert _get(client).data == b"told"


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "0", "\u00e4", "null"])
def test_another_token_opens_nothing(wrong: str) -> None:
    client = _client()
    assert _get(client, f"/page?token={wrong}").status_code == HTTPStatus.UNAUTHORIZED
    assert (
        _get(client, Authorization=f"Bearer {wrong}".encode().decode("latin-1")).status_code == HTTPStatus.UNAUTHORIZED
    )
    client.set_cookie("perfscope_8765", wrong)
    assert _get(client).status_code == HTTPStatus.UNAUTHORIZED


def test_servers_on_two_ports_keep_their_sessions() -> None:
    client = _client()
    for port in ("8765", "8766"):
        answer = client.get(f"/page?token={TOKEN}", headers={"Host": f"127.0.0.1:{port}"})
        assert answer.headers["Set-Cookie"].startswith(f"perfscope_{port}=")


def test_an_address_that_leads_elsewhere_is_not_followed() -> None:
    answer = _get(_client(), f"//evil.example/?token={TOKEN}")
    assert not answer.headers.get("Location", "/").startswith("//")


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:8765", "0.0.0.0:8765", "localhost.evil:80", "10.0.0.7"]
)
def test_another_name_is_refused_even_with_the_token(host: str) -> None:
    answer = _client().get("/page", headers={"Host": host, "Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == HTTPStatus.MISDIRECTED_REQUEST


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765", "LOCALHOST", "gpu7.lab:443"])
def test_its_own_names_are_answered(host: str) -> None:
    client = _client(more=("gpu7.lab",))
    assert client.get("/page", headers={"Host": host, "Authorization": f"Bearer {TOKEN}"}).data == b"told"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "https://localhost"])
def test_another_page_cannot_change_anything(origin: str) -> None:
    headers = {"Host": "127.0.0.1:8765", "Authorization": f"Bearer {TOKEN}", "Origin": origin}
    assert _client().post("/page", headers=headers).status_code == HTTPStatus.FORBIDDEN


def test_its_own_page_can() -> None:
    headers = {"Host": "127.0.0.1:8765", "Authorization": f"Bearer {TOKEN}", "Origin": "http://127.0.0.1:8765"}
    assert _client().post("/page", headers=headers).data == b"told"


def test_large_requests_are_refused() -> None:
    client = _client()
    headers = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}"}
    answer = client.post("/page", data=b"x" * (MOST_BODY_BYTES + 1), headers=headers)
    assert answer.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert client.get(f"/page?x={'y' * MOST_QUERY}", headers=headers).status_code == HTTPStatus.REQUEST_URI_TOO_LONG


def test_every_answer_carries_the_policy() -> None:
    for answer in (_get(_client()), _get(_client(None))):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "unsafe-eval" not in policy
        assert "script-src 'self'" in policy
        assert "'unsafe-inline'" not in policy.split("script-src")[1].split(";")[0]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def _file(path: Path, content: str = '{"traceEvents": []}') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_a_file_has_a_key_that_is_no_path(tmp_path: Path) -> None:
    shelf = Shelf([_file(tmp_path / "a b" / "träce (1).json")])
    (item,) = shelf.items()
    assert KEY.fullmatch(item.key)
    assert shelf.find(item.key) == item


@pytest.mark.parametrize(
    "key", ["../x", "..", "/etc/passwd", "", ".hidden", "a/b", "a\0b", "x" * 81, "%2e%2e", "trace.json"]
)
def test_other_keys_lead_nowhere(tmp_path: Path, key: str) -> None:
    assert Shelf([_file(tmp_path / "trace.json")]).find(key) is None


def test_equal_names_are_two_items(tmp_path: Path) -> None:
    shelf = Shelf([_file(tmp_path / "a" / "trace.json"), _file(tmp_path / "b" / "trace.json")])
    assert len(shelf.items()) == 2


def test_runs_of_a_folder_come_and_go(tmp_path: Path) -> None:
    runs = tmp_path / "perfscope-runs"
    _file(runs / "20260101-000000-a-0001" / "run.json", "{}")
    shelf = Shelf([runs])
    assert [item.title for item in shelf.items()] == ["20260101-000000-a-0001"]
    _file(runs / "20260102-000000-b-0002" / "run.json", "{}")
    assert [item.title for item in shelf.items()] == ["20260102-000000-b-0002", "20260101-000000-a-0001"]


def test_traces_in_a_folder_of_runs_are_listed_after_them(tmp_path: Path) -> None:
    runs = tmp_path / "perfscope-runs"
    _file(runs / "20260101-000000-a-0001" / "run.json", "{}")
    for name in ("b.json", "a.json", ".hidden.json"):
        _file(runs / name)
    _file(runs / "notes.txt", "no trace")
    _file(runs / "comparison.json", '{"schema": "perfscope.compare/1"}')
    (runs / "link.json").symlink_to(runs / "a.json")
    assert [item.title for item in Shelf([runs]).items()] == ["20260101-000000-a-0001", "a.json", "b.json"]


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "elsewhere" / "20260103-000000-c-0003"
    _file(outside / "run.json", "{}")
    runs = tmp_path / "runs"
    _file(runs / "20260101-000000-a-0001" / "run.json", "{}")
    (runs / "20260103-000000-c-0003").symlink_to(outside)
    assert [item.title for item in Shelf([runs]).items()] == ["20260101-000000-a-0001"]


def test_a_change_is_noticed(tmp_path: Path) -> None:
    file = _file(tmp_path / "trace.json")
    (item,) = Shelf([file]).items()
    before = item.fingerprint()
    assert before == item.fingerprint()
    os.utime(file, ns=(1, 1))
    assert item.fingerprint() != before
    file.unlink()
    assert item.fingerprint() is None


def test_a_path_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        Shelf([tmp_path / "nothing"])


PATIENCE_S = 20


@pytest.fixture
def stopped() -> Iterator[threading.Event]:
    """Set by the SIGTERM that the main thread gets."""
    told = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: told.set())
    yield told
    signal.signal(signal.SIGTERM, before)


def _ask(late: Late, answers: list[Any]) -> threading.Thread:
    statuses: list[str] = []

    def ask() -> None:
        body = b"".join(late({}, lambda status, headers: statuses.append(status)))
        answers.append((statuses[0], body))

    asked = threading.Thread(target=ask)
    asked.start()
    return asked


def test_a_request_waits_until_it_is_made() -> None:
    libraries = threading.Event()

    def make() -> Any:
        libraries.wait(PATIENCE_S)

        def application(environ: Any, start_response: Any) -> list[bytes]:
            start_response("200 OK", [])
            return [b"page"]

        return application

    late, answers = Late(make), []  # type: ignore[var-annotated]
    late.begin()
    asked = _ask(late, answers)
    assert answers == []
    libraries.set()
    asked.join(PATIENCE_S)
    assert answers == [("200 OK", b"page")]
    assert late.problem is None


def test_a_browser_gets_a_first_page_at_once_and_then_waits() -> None:
    """A page without data; its next request, which has the cookie, is answered by the application."""
    libraries = threading.Event()

    def make() -> Any:
        libraries.wait(PATIENCE_S)
        return lambda environ, start_response: (start_response("200 OK", []), [b"page"])[1]

    late, headers = Late(make), []  # type: ignore[var-annotated]
    late.begin()
    opens = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "HTTP_SEC_FETCH_DEST": "document"}

    def told(status: str, given: list[tuple[str, str]]) -> None:
        headers.append((status, dict(given)))

    (first,) = late(opens, told)
    status, held = headers[0]
    assert status == "200 OK"
    assert b'http-equiv="refresh"' in first
    assert held["Cache-Control"] == "no-store"
    assert held["Content-Security-Policy"].startswith("default-src 'none'")
    assert int(held["Content-Length"]) == len(first)
    again = {**opens, "HTTP_COOKIE": held["Set-Cookie"].partition(";")[0]}
    answers: list[bytes] = []
    asked = threading.Thread(target=lambda: answers.extend(late(again, told)))
    asked.start()
    assert answers == []
    libraries.set()
    asked.join(PATIENCE_S)
    assert answers == [b"page"]
    assert late(opens, told) == [b"page"], "once it is made there is no first page"


def test_what_cannot_be_made_ends_the_server(stopped: threading.Event) -> None:
    def make() -> Any:
        raise ImportError("no dash here")

    late, answers = Late(make), []  # type: ignore[var-annotated]
    late.begin()
    _ask(late, answers).join(PATIENCE_S)
    assert stopped.wait(PATIENCE_S)
    assert answers[0][0].startswith("500")
    assert b"no dash" not in answers[0][1]
    assert str(late.problem) == "no dash here"


HOSTS = frozenset({"127.0.0.1"})


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewer, "PACKAGE", "no_such_package_of_a_viewer")


@pytest.mark.usefixtures("absent")
def test_without_the_files_there_is_no_page_of_perfetto() -> None:
    def no_server(*_: Any, **__: Any) -> Any:
        raise AssertionError("nothing is to be served")

    assert viewer.find_viewer() is None
    assert serve._perfetto_page(no_server, "127.0.0.1", HOSTS) is None


def _found(monkeypatch: pytest.MonkeyPatch, package: Path) -> None:
    spec = importlib.machinery.ModuleSpec("viewer", None, is_package=True)
    spec.submodule_search_locations = [str(package)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: spec)


def test_its_files_are_found_and_no_others_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _found(monkeypatch, tmp_path)
    assert viewer.find_viewer() is None
    folder = tmp_path / viewer.FOLDER
    (folder / "deep").mkdir(parents=True)
    for name in (viewer.INDEX, "service_worker.js", "deep/a.wasm"):
        (folder / name).write_text(name)
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    assert viewer.find_viewer() == folder
    application = viewer.viewer(folder, HOSTS)
    told: list[str] = []

    def ask(path: str, method: str = "GET", host: str = "127.0.0.1:80") -> tuple[str, bytes]:
        given = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": host}
        body = application(given, lambda status, headers: told.append(f"{status} {dict(headers)['Content-Type']}"))
        return told[-1], b"".join(body)

    assert ask("/") == ("200 OK text/html", b"index.html")
    assert ask("/deep/a.wasm") == ("200 OK application/wasm", b"deep/a.wasm")
    assert ask("/deep/a.wasm", "HEAD") == ("200 OK application/wasm", b"")
    for path in ("/service_worker.js", "/link", "/../secret", "/deep", "", "/deep/../index.html"):
        assert ask(path)[0].startswith("404"), path
    assert ask("/", "POST")[0].startswith("405")
    assert ask("/", host="evil.example")[0].startswith("421")


@pytest.mark.parametrize(
    "template", ["javascript://%0aalert(1)//{file}{line}", "data:text/html,{file}{line}", "vscode://file/x", "vim"]
)
def test_what_opens_no_line_in_an_editor_is_refused(template: str) -> None:
    with pytest.raises(UsageError, match="--editor"):
        serve._editor(template)


@pytest.mark.parametrize("name", [*serve.EDITORS, "idea://open?file={file}&line={line}"])
def test_the_editor_is_a_name_or_a_template(name: str) -> None:
    assert serve._editor(name).partition("://")[2].count("{") == 2
