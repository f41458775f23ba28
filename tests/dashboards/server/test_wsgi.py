"""The dashboard under several processes: what its environment must hold, and real gunicorn where it is installed."""

from __future__ import annotations

import os
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
    from perfscope.dashboards.wsgi import application

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
    from perfscope.dashboards.wsgi import application

    client = application(_environment(tmp_path, PERFSCOPE_SERVE_BASE_PATH="tools/perfscope")).test_client()
    headers = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}"}
    answer = client.get("/tools/perfscope/", headers=headers)
    assert answer.status_code == 200
    assert b"/tools/perfscope/api/style.css" in answer.data
    assert client.get("/tools/perfscope/api/style.css", headers=headers).status_code == 200
    assert client.get("/api/style.css", headers=headers).status_code == 404


@pytest.mark.slow
def test_two_processes_answer(tmp_path: Path) -> None:
    gunicorn = shutil.which("gunicorn", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    if gunicorn is None:
        pytest.skip("no gunicorn here")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    line = [gunicorn, "--workers", "2", "--bind", f"127.0.0.1:{port}", "perfscope.dashboards.wsgi:application()"]
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
