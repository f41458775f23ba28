"""A run opens in TensorBoard as it is: the plugin lists the profile, its tools, and answers with data."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.chromium import binary
from tests.jax_capture.test_session import LOOP
from tests.session.programs import captured, write

pytestmark = [pytest.mark.jax, pytest.mark.slow]

SECONDS = 120


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The plugin's address while TensorBoard shows a run."""
    for package in ("tensorboard", "xprof"):
        pytest.importorskip(package)
    assert captured(write(tmp_path, LOOP + "work(8)\n"), cwd=tmp_path).returncode == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    run = tmp_path / "perfscope-runs" / "latest"
    process = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", "--logdir", str(run), "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    try:
        yield f"http://127.0.0.1:{port}/data/plugin/profile"
    finally:
        process.terminate()
        process.wait()


def ask(address: str) -> Any:
    """The plugin's answer, as soon as it responds."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(address, timeout=SECONDS) as answer:
                content = answer.read()
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > end:
                raise
            time.sleep(0.5)
            continue
        return json.loads(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)


def test_the_profile_its_tools_and_their_data_are_there(server: str) -> None:
    end = time.monotonic() + SECONDS
    while not (runs := ask(f"{server}/runs")) and time.monotonic() < end:
        time.sleep(0.5)  # it answers before it has looked
    (run,) = runs
    assert run.startswith("rank00000/")
    query = f"run={urllib.parse.quote(run)}"
    tools = ask(f"{server}/run_tools?{query}")
    assert {"trace_viewer@", "memory_viewer", "overview_page"} <= set(tools)
    assert ask(f"{server}/hosts?{query}&tag=overview_page") == [{"hostname": "perfscope"}]
    trace = ask(f"{server}/data?{query}&tag=trace_viewer&host=perfscope")
    names = {event.get("name") for event in trace["traceEvents"]}
    assert any("train_step" in str(name) for name in names)


def test_its_profile_page_shows_the_run_in_a_browser(server: str) -> None:
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = binary()
    if chromium is None:
        pytest.skip("no Chromium here")
    (run,) = ask(f"{server}/runs") or ask(f"{server}/runs")
    errors: list[str] = []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            page = browser.new_page()
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.goto(f"{server.partition('/data')[0]}/#profile", wait_until="domcontentloaded")
            shown = wait_for(page, (run, "Average Step Time"))
        finally:
            browser.close()
    assert "Sessions (1)" in shown
    assert "perfscope" in shown, "the host"
    assert not errors


def wait_for(page: Any, texts: tuple[str, ...]) -> str:
    """The text of the plugin's frame with all of ``texts`` in it; its charts come from a server that is not asked."""
    end = time.monotonic() + SECONDS
    shown = ""
    while time.monotonic() < end:
        page.wait_for_timeout(500)
        for frame in page.frames[1:]:
            shown = frame.evaluate("document.body ? document.body.innerText : ''")
            if all(text in shown for text in texts):
                return shown
    raise AssertionError(shown)
