"""Pages follow external changes: runs that appear and disappear."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Server, Tab, serving
from tests.kept_runs import put_run

pytestmark = pytest.mark.slow

CHOICE = "[...document.querySelectorAll('[role=option]')].map((one) => one.innerText)"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    put_run(tmp_path / "perfscope-runs", 0)
    return tmp_path


@pytest.fixture
def server(home: Path) -> Iterator[Server]:
    cache = home.parent / f"{home.name}-cache"
    cache.mkdir()
    with serving(cache, "perfscope-runs", cwd=home) as held:
        yield held


def test_the_picker_has_what_there_is_now(tab: Tab, server: Server, home: Path) -> None:
    tab.open(f"{server.base}runs?token={server.token}", ".ag-row a")
    made = put_run(home / "perfscope-runs", 1)
    tab.page.click("#which")
    tab.until(f"{CHOICE}.includes('{made.name}')")
    shutil.rmtree(made)
    tab.until(f"{CHOICE}.length === 1 && !{CHOICE}.includes('{made.name}')")
    assert tab.wrong == []


def test_what_is_ticked_is_deleted_after_a_question(tab: Tab, server: Server, home: Path) -> None:
    made = put_run(home / "perfscope-runs", 1, exit_code=1)
    tab.open(f"{server.base}runs?token={server.token}", ".ag-row a")
    tab.until("document.querySelector('#page').innerText.includes('failed (1)')")
    asked: list[str] = []

    def answer(dialog: Any, *, agree: bool) -> None:
        asked.append(dialog.message)
        dialog.accept() if agree else dialog.dismiss()

    for agree in (False, True):
        tab.page.once("dialog", lambda dialog, agree=agree: answer(dialog, agree=agree))
        if not agree:
            tab.page.click(f".ag-row:has-text('{made.name}') input[type=checkbox]")
        tab.page.click("button:has-text('delete 1 from disk')")
        tab.page.wait_for_timeout(500)
        assert made.name in asked[-1]
        assert made.exists() is not agree
    tab.until("document.querySelectorAll('.ag-center-cols-container .ag-row').length === 1")
    assert tab.wrong == []
