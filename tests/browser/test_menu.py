"""The menu leads back to what was looked at, also from pages about nothing alone, and shows where one is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perfscope.dashboards.server.shelf import Shelf
from tests.browser.conftest import Server, Tab, serving
from tests.browser.test_timeline import _trace

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, list[str]]]:
    home = tmp_path_factory.mktemp("menu")
    files = [_trace(home / "first.json.gz"), _trace(home / "second.json.gz")]
    with serving(home, *files) as server:
        yield server, [item.key for item in Shelf(files).items()]


@pytest.mark.parametrize("page", ["Runs", "History", "Compare"])
def test_the_way_back_is_to_the_same_run(tab: Tab, served: tuple[Server, list[str]], page: str) -> None:
    server, keys = served
    tab.open(f"{server.base}overview?token={server.token}", ".ps-over")
    tab.open(f"{server.base}overview?run={keys[1]}", ".ps-over")
    tab.page.click(f"#menu >> text={page}")
    tab.until(f"document.querySelector('#page h1').innerText === '{page}'")
    assert "second" in tab.page.input_value("#which")
    tab.page.wait_for_timeout(300)
    assert f"/{page.lower()}?" in tab.page.url  # naming the run in the header leads nowhere else
    tab.page.click("#menu >> text=Overview")
    tab.page.wait_for_selector(".ps-over")
    assert f"run={keys[1]}" in tab.page.url
    assert tab.wrong == []


def test_what_was_looked_at_is_what_is_compared(tab: Tab, served: tuple[Server, list[str]]) -> None:
    server, keys = served
    tab.open(f"{server.base}compare?token={server.token}", "#compare-head")
    tab.open(f"{server.base}compare?run={keys[1]}", "#compare-head")
    tab.until("document.querySelector('#compare-head').value.includes('second')")
    assert tab.page.input_value("#compare-base") == ""
    tab.page.click("#compare-base")
    tab.page.click("[role=option]:has-text('first'):visible")
    tab.until("document.querySelector('#page .verdict') !== null")
    assert f"base={keys[0]}&head={keys[1]}" in tab.page.url
    tab.page.click("#menu >> text=Kernels")
    tab.page.wait_for_url(f"**/kernels?run={keys[1]}")
    assert tab.wrong == []


def test_on_a_phone_the_open_page_is_in_sight(tab: Tab, served: tuple[Server, list[str]]) -> None:
    server, keys = served
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.open(f"{server.base}overview?token={server.token}", ".ps-over")
    for page in ("findings", "overview"):
        tab.open(f"{server.base}{page}?run={keys[0]}", "#menu .ps-here")
        tab.until(
            """(() => { const box = document.querySelector('#menu .ps-here').getBoundingClientRect();
            return box.left >= 0 && box.right <= window.innerWidth; })()"""
        )
    assert tab.wrong == []
