"""A server with real runs, and a browser that remembers what its pages logged and asked for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.browser import chromium
from tests.conftest import REPOSITORY

playwright = pytest.importorskip("playwright.sync_api")

PATIENCE_MS = 60_000
START_S = 30.0


@dataclass
class Server:
    """A running ``perfscope serve``. ``url`` is with its token, ``base`` without."""

    url: str
    process: subprocess.Popen[str]

    @property
    def base(self) -> str:
        return self.url.partition("?")[0]

    @property
    def token(self) -> str:
        return self.url.partition("token=")[2]


@contextmanager
def serving(
    cache: Path, *paths: Path | str, options: tuple[str, ...] = (), cwd: Path | None = None
) -> Iterator[Server]:
    """``perfscope serve`` on a free port, as a user starts it."""
    line = [
        sys.executable,
        "-m",
        "perfscope",
        "serve",
        "--port",
        "0",
        "--cache",
        str(cache),
        *options,
        *map(str, paths),
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, cwd=cwd or cache, env=environment)
    try:
        assert process.stderr is not None
        end, said = time.monotonic() + START_S, ""
        while time.monotonic() < end:
            said = process.stderr.readline()
            if found := re.search(r"open (http://\S+)", said):
                yield Server(url=found[1], process=process)
                return
            assert process.poll() is None, said
        raise AssertionError(f"no address was told: {said}")
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def serving_program(home: Path, text: str) -> Iterator[Server]:
    """A server of one compiled program."""
    program = home / "step.hlo.txt"
    program.write_text(text)
    with serving(home, program) as held:
        yield held


@dataclass
class Tab:
    """A page of the browser. ``wrong``: what its console and the network complained about; ``asked``: all addresses."""

    page: Any
    wrong: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def open(self, url: str, ready: str) -> None:
        """Open an address and wait until ``ready`` (a CSS selector) is there."""
        self.page.goto(url)
        self.page.wait_for_selector(ready, timeout=PATIENCE_MS)

    def failed(self, url: str, why: str | None) -> None:
        """Whether a request failed; requests that the page cancelled on leaving do not count."""
        if why != "net::ERR_ABORTED":
            self.wrong.append(f"failed: {url} {why}")

    def until(self, holds: str) -> None:
        """Wait until a JavaScript expression is true (the page's policy forbids playwright's own way)."""
        end = time.monotonic() + PATIENCE_MS / 1000
        while time.monotonic() < end:
            with suppress(playwright.Error):  # The first page of a server that starts reloads itself.
                if self.page.evaluate(holds):
                    return
            self.page.wait_for_timeout(30)
        raise AssertionError(f"never: {holds}")

    def went_away(self) -> list[str]:
        """Addresses that are not of this machine."""
        return [url for url in self.asked if not re.match(r"(http://127\.0\.0\.1[:/]|data:|blob:)", url)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One headless Chromium for a file's tests: while it is there, an event loop runs, and others could run none."""
    binary = chromium.binary()
    if binary is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        held = driver.chromium.launch(executable_path=binary, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield held
        held.close()


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    """A fresh tab at 1280 px with no cookies."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(PATIENCE_MS)
    context.set_default_navigation_timeout(PATIENCE_MS)
    page = context.new_page()
    held = Tab(page)
    page.on("console", lambda line: held.wrong.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: held.wrong.append(str(error)))
    page.on("request", lambda request: held.asked.append(request.url))
    page.on("requestfailed", lambda request: held.failed(request.url, request.failure))
    yield held
    context.close()
