"""A request that comes before the dashboard is made waits for it; why none is made, the main thread tells."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from perfscope.dashboards.server.late import Late

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
