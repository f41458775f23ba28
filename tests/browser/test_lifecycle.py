"""Runs come, go and change while they are shown; two people look at once; strangers are sent away."""

from __future__ import annotations

import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Server, Tab, serving
from tests.browser.kineto import ops

OPS = ("aten::first_op", "aten::second_op", "aten::third_op")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lifecycle")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[Server]:
    files = [ops(home / f"trace-{at}.json", op) for at, op in enumerate(OPS)]
    with serving(home, *files) as held:
        yield held


def _keys(tab: Tab, server: Server) -> list[str]:
    tab.open(f"{server.base}runs?token={server.token}", ".ag-row a")
    links = tab.page.eval_on_selector_all(".ag-row a", "(links) => links.map((one) => one.href)")
    return [link.partition("run=")[2] for link in links]


@pytest.mark.slow
def test_two_people_look_at_two_traces(tab: Tab, browser: Any, server: Server) -> None:
    first, second, _ = _keys(tab, server)
    other = browser.new_context().new_page()
    other.goto(f"{server.base}kernels?token={server.token}&run={second}")
    tab.open(f"{server.base}kernels?run={first}", ".ag-row")
    other.wait_for_selector(".ag-row", timeout=60_000)
    assert OPS[0] in tab.page.inner_text(".ag-root")
    assert OPS[1] in other.inner_text(".ag-root")
    assert OPS[0] not in other.inner_text(".ag-root")
    assert tab.wrong == []
    other.context.close()


@pytest.mark.slow
def test_a_file_that_is_replaced_is_shown_anew_by_itself(tab: Tab, home: Path, server: Server) -> None:
    key = _keys(tab, server)[2]
    tab.open(f"{server.base}kernels?run={key}", ".ag-row")
    assert OPS[2] in tab.page.inner_text(".ag-root")
    ops(home / "trace-2.json", "aten::after_the_change")
    tab.until("document.querySelector('.ag-root')?.innerText.includes('aten::after_the_change')")
    assert tab.wrong == []


@pytest.mark.slow
def test_a_file_that_goes_is_told_and_what_it_held_stays(tab: Tab, home: Path, server: Server) -> None:
    key = _keys(tab, server)[1]
    tab.open(f"{server.base}kernels?run={key}", ".ag-row")
    kept = home / "trace-1.json"
    shutil.move(kept, home / "gone.json")
    tab.until("document.querySelector('#live').innerText.includes('its files are gone')")
    tab.page.goto(f"{server.base}overview?run={key}")
    tab.until("document.querySelector('.ps-report')?.innerText.includes('trace-1.json')")
    shutil.move(home / "gone.json", kept)
    assert server.process.poll() is None
    assert tab.wrong == []


@pytest.mark.slow
def test_a_damaged_file_is_one_line(tab: Tab, home: Path, server: Server) -> None:
    key = _keys(tab, server)[0]
    (home / "trace-0.json").write_text('{"schemaVersion": 1, "traceEvents": [{"ph"')
    tab.page.goto(f"{server.base}compile?run={key}")
    tab.until("document.body.innerText.includes('cannot be read') || document.body.innerText.includes('trace-0.json:')")
    ops(home / "trace-0.json", OPS[0])
    assert server.process.poll() is None


@pytest.mark.slow
def test_a_page_and_a_key_that_are_not_there_are_said(tab: Tab, server: Server) -> None:
    tab.open(f"{server.base}nothing?token={server.token}", "[role=alert]")
    assert "no such page" in tab.page.inner_text("[role=alert]").lower()
    tab.open(f"{server.base}overview?run=../../etc/passwd", "[role=alert]")
    assert "No such run" in tab.page.inner_text("[role=alert]")
    assert tab.wrong == []


def _status(url: str, **headers: str) -> int:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    "path",
    [
        "",
        "overview",
        "_dash-layout",
        "_dash-dependencies",
        "api/style.css",
        "assets/perfscope.css",
        "api/timeline/x/tile",
    ],
)
def test_nothing_is_told_without_the_token(server: Server, path: str) -> None:
    assert _status(f"{server.base}{path}") == 401
    assert _status(f"{server.base}{path}", Authorization=f"Bearer {server.token}", Host="evil.example") == 421


@pytest.mark.parametrize(
    "path",
    [
        "api/timeline/..%2f..%2fetc%2fpasswd/tile", "api/timeline/x/tile", "api/nothing", "api/timeline/x/nothing",
        "api/table/x/..%2f..%2fetc/passwd.csv", "assets/..%2f..%2fapp.py", "assets/../app.py",
        "_dash-component-suites/perfscope/dashboards/app.py", "_dash-component-suites/os/path.py",
    ],
)  # fmt: skip
def test_no_path_leads_out(server: Server, path: str) -> None:
    assert _status(f"{server.base}{path}", Authorization=f"Bearer {server.token}") >= 400


@pytest.mark.slow
def test_a_live_run_says_so_and_grows(tab: Tab, tmp_path: Path) -> None:
    """A run whose program has not ended: its state is held by a lock."""
    from perfscope.model.documents import run_folders

    runs = tmp_path / "perfscope-runs"
    directory = run_folders.create(runs, "live")
    with run_folders.alive(directory), serving(tmp_path, runs) as server:
        (directory / "run.json").write_text("{}")
        tab.page.goto(f"{server.base}runs?token={server.token}")
        tab.until("document.body.innerText.includes('running')")
