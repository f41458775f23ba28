"""A headless Chromium driven over the DevTools pipe: log messages, requests and width of a page."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

BINARIES = ("chromium", "chromium-browser", "google-chrome", "chrome")

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip


def binary() -> str | None:
    """The browser on this machine, if there is one."""
    return next(filter(None, map(shutil.which, BINARIES)), None)


class Page:
    """One tab. ``events`` holds everything the browser told."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self._to, self._from = to_browser, os.fdopen(from_browser, "rb", buffering=0)
        self._held = b""
        self._last = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return answer["result"]  # type: ignore[no-any-return]
            self.events.append(answer)

    def open(self, path: Path, *, width: int, dark: bool = False) -> None:
        """Open a file in a viewport of ``width`` CSS pixels and wait until it is loaded."""
        self.events.clear()
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1,
                  mobile=width < 600)  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self.send("Page.navigate", url=path.resolve().as_uri())
        while not self.told("Page.loadEventFired"):
            self.events.append(self._receive())

    def told(self, method: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") == method]

    def value(self, expression: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings in the console, uncaught exceptions, refusals of the content policy."""
        logged = [entry["entry"]["text"] for entry in self.told("Log.entryAdded")]
        raised = [str(entry["exceptionDetails"]) for entry in self.told("Runtime.exceptionThrown")]
        called = [str(entry["args"]) for entry in self.told("Runtime.consoleAPICalled")]
        return logged + raised + called

    def requests(self) -> list[str]:
        return [entry["request"]["url"] for entry in self.told("Network.requestWillBeSent")]

    def dialogs(self) -> list[dict[str, Any]]:
        return self.told("Page.javascriptDialogOpening")

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._held:
            read = self._from.read(1 << 16)
            assert read, "the browser closed the pipe"
            self._held += read
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)  # type: ignore[no-any-return]


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A page in a fresh browser; the browser ends with the block."""
    name = binary()
    assert name is not None
    browser_reads, we_write = os.pipe()
    we_read, browser_writes = os.pipe()

    def inherit() -> None:  # the pipe mode reads from descriptor 3 and writes to 4
        first, second = os.dup(browser_reads), os.dup(browser_writes)
        os.dup2(first, 3)
        os.dup2(second, 4)

    process = subprocess.Popen(
        [name, *FLAGS, f"--user-data-dir={profile}"],
        preexec_fn=inherit, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(browser_reads)
    os.close(browser_writes)
    try:
        yield Page(we_write, we_read)
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(we_write)
