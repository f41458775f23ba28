"""Names of runs that ``perfscope serve`` accepts."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from perfscope.model.errors import UsageError
from tests.conftest import REPOSITORY

pytest.importorskip("dash")
NAME = "20260101-000000-train-0001"


def _said(where: Path, name: str) -> str:
    """The first line that the command prints; it is then ended."""
    line = [sys.executable, "-m", "perfscope", "serve", "--port", "0", "--cache", str(where), name]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, cwd=where) as started:
        assert started.stderr is not None
        try:
            return started.stderr.readline()
        finally:
            started.terminate()


@pytest.fixture
def where(tmp_path: Path) -> Path:
    runs = tmp_path / "perfscope-runs"
    runs.mkdir()
    shutil.copytree(REPOSITORY / "fixtures" / "cpu-attention-sdpa", runs / NAME)
    (runs / "latest").symlink_to(NAME)
    return tmp_path


@pytest.mark.parametrize("name", ["latest", NAME[:12], f"perfscope-runs/{NAME}"])
def test_a_run_is_named_as_everywhere(where: Path, name: str) -> None:
    assert re.match(r"perfscope: open http://127\.0\.0\.1:\d+/\?token=", _said(where, name))


def test_what_is_not_there_is_one_line(where: Path) -> None:
    assert _said(where, "nowhere") == "perfscope: nowhere: no such file or folder\n"


pytest.importorskip("dash")

TOKEN = "a-token-of-a-team-0123456789"
START_S = 40.0


def _environment(tmp_path: Path, **more: str) -> dict[str, str]:
    (tmp_path / "trace.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return {
        "PERFSCOPE_SERVE_PATHS": str(tmp_path / "trace.json"),
        "PERFSCOPE_SERVE_TOKEN_FILE": str(tmp_path / "token"),
        "PERFSCOPE_SERVE_CACHE": str(tmp_path / "cache"),
        **more,
    }


def test_without_a_token_there_is_no_server(tmp_path: Path) -> None:
    from perfscope.dashboards.web.wsgi import application

    held = _environment(tmp_path)
    del held["PERFSCOPE_SERVE_TOKEN_FILE"]
    with pytest.raises(UsageError, match="TOKEN_FILE"):
        application(held)
    (tmp_path / "token").write_text("short")
    with pytest.raises(UsageError, match="at least 16"):
        application(_environment(tmp_path) | {"PERFSCOPE_SERVE_TOKEN_FILE": str(_short(tmp_path))})


def _short(tmp_path: Path) -> Path:
    file = tmp_path / "short"
    file.write_text("short")
    return file


def test_a_path_of_a_proxy_is_kept(tmp_path: Path) -> None:
    from perfscope.dashboards.web.wsgi import application

    client = application(_environment(tmp_path, PERFSCOPE_SERVE_BASE_PATH="tools/perfscope")).test_client()
    headers = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}"}
    answer = client.get("/tools/perfscope/", headers=headers)
    assert answer.status_code == 200
    assert b"/tools/perfscope/api/style.css" in answer.data
    assert client.get("/tools/perfscope/api/style.css", headers=headers).status_code == 200
    assert client.get("/api/style.css", headers=headers).status_code == 404


_CALLBACK = "_dash-update-component"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("_dash-component-suites/nope/x.js", None, 404),
        ("_dash-component-suites/dash/x.js", None, 404),
        ("_dash-component-suites/%0d%0a/x.js", None, 400),
        ("a%0d%0aX:%20y", None, 400),
        (f"%0d%0a?token={TOKEN}", None, 400),
        (_CALLBACK, {}, 400),
        (_CALLBACK, [], 400),
        (_CALLBACK, {"output": 5}, 400),
        (_CALLBACK, {"output": "nope.children", "inputs": [], "changedPropIds": []}, 400),
        (
            _CALLBACK,
            {"output": "at.href", "outputs": {"id": "at", "property": "href"}, "inputs": [], "changedPropIds": []},
            400,
        ),
    ],
)
def test_requests_of_no_page_are_refused_in_a_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, body: object, status: int
) -> None:
    from perfscope.dashboards.web.wsgi import application

    client = application(_environment(tmp_path)).test_client()
    headers = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}"}
    answer = client.get(f"/{path}", headers=headers) if body is None else client.post(path, json=body, headers=headers)
    assert answer.status_code == status
    assert re.fullmatch(rb"perfscope: .+\n", answer.data)
    assert not caplog.records


def test_deep_json_to_a_callback_is_refused_in_a_line(tmp_path: Path) -> None:
    from perfscope.dashboards.web.wsgi import application

    client = application(_environment(tmp_path)).test_client()
    headers = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}"}
    answer = client.post(f"/{_CALLBACK}", data=b"[" * 100_000, content_type="application/json", headers=headers)
    assert (answer.status_code, answer.data) == (400, b"perfscope: no such callback\n")


def test_an_error_of_our_own_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfscope.dashboards.web import app
    from perfscope.dashboards.web.wsgi import application

    def broken(*_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(app, "_frame", broken)
    caplog.set_level("WARNING", "perfscope")  # a test before may have asked for tracebacks
    client = application(_environment(tmp_path)).test_client()
    answer = client.get("/_dash-layout", headers={"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == 500
    (record,) = caplog.records
    assert record.getMessage() == "perfscope: internal error in /_dash-layout: KeyError: 'planted'"
    assert record.exc_info is None


@pytest.mark.slow
def test_two_processes_answer(tmp_path: Path) -> None:
    gunicorn = shutil.which("gunicorn", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if gunicorn is None:
        pytest.skip("no gunicorn here")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    line = [gunicorn, "--workers", "2", "--bind", f"127.0.0.1:{port}", "perfscope.dashboards.web.wsgi:application()"]
    process = subprocess.Popen(
        line, env={**os.environ, **_environment(tmp_path)}, stderr=subprocess.DEVNULL, process_group=0
    )
    try:
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers={"Authorization": f"Bearer {TOKEN}"})
            try:
                with urllib.request.urlopen(request, timeout=5) as answer:
                    assert answer.status == 200
                    break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.3)
        else:
            raise AssertionError("gunicorn does not answer")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
    finally:
        process.terminate()
        process.wait(10)
