"""Without a mouse: Tab reaches everything in order and shows where it is, pages have keys, nothing moves unasked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perfscope.dashboards.web.server.shelf import Shelf
from tests.browser.conftest import Server, Tab, serving
from tests.browser.test_timeline import READY, _trace

pytestmark = pytest.mark.slow

MOST_STOPS = 60
"""More Tabs than any page here has stops: who needs more is caught somewhere."""

STOP = """() => {
  const one = document.activeElement, style = getComputedStyle(one), box = one.getBoundingClientRect();
  const box_of = one.closest(".dash-input-container");
  const label = one.matches("[type=checkbox]") ? one.parentElement.querySelector("label") : box_of;
  const track = label ? getComputedStyle(label) : style;
  const shown = [style, track].some((each) => each.outlineStyle !== 'none' && parseFloat(each.outlineWidth) > 0);
  return { tag: one.tagName, id: one.id, words: (one.innerText || '').trim().slice(0, 40), shown, left: box.left,
           menu: Boolean(one.closest('#menu')), grid: Boolean(one.closest('.ag-root-wrapper')),
           page: Boolean(one.closest('#page')) };
}"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("keyboard")
    with serving(home, _trace(home / "first.json.gz"), _trace(home / "second.json.gz")) as held:
        yield held


def _open(tab: Tab, server: Server, page: str, ready: str) -> None:
    tab.open(f"{server.base}{page}?token={server.token}", ready)


def _walk(tab: Tab) -> list[dict[str, Any]]:
    """Every stop of Tab from the top of the page until the keys leave it."""
    found = []
    for _ in range(MOST_STOPS):
        tab.page.keyboard.press("Tab")
        stop = tab.page.evaluate(STOP)
        if stop["tag"] == "BODY":
            return found
        found.append(stop)
    raise AssertionError([one["words"] or one["tag"] for one in found])


def _tab_to(tab: Tab, selector: str) -> None:
    for _ in range(MOST_STOPS):
        if tab.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            return
        tab.page.keyboard.press("Tab")
    raise AssertionError(f"Tab never reaches {selector}")


def test_tab_goes_from_header_to_menu_to_page_and_out(tab: Tab, server: Server) -> None:
    _open(tab, server, "kernels", ".ag-row")
    stops = _walk(tab)
    assert stops[0]["words"] == "skip to the page"
    assert stops[0]["left"] >= 0, "the skip link is seen once it has the focus"
    zones = ["menu" if one["menu"] else "page" if one["page"] else "header" for one in stops]
    assert zones == sorted(zones, key=("header", "menu", "page").index)
    assert set(zones) == {"header", "menu", "page"}
    assert {"which", "dark"} <= {one["id"] for one in stops}
    unseen = [one["words"] or one["id"] or one["tag"] for one in stops if not one["shown"] and not one["grid"]]
    assert unseen == []
    assert tab.wrong == []


def test_the_skip_link_skips(tab: Tab, server: Server) -> None:
    _open(tab, server, "kernels", ".ag-row")
    tab.page.keyboard.press("Tab")
    tab.page.keyboard.press("Enter")
    tab.until("document.activeElement.id === 'page'")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate(STOP)["page"]


def test_menu_picker_and_dark_switch(tab: Tab, server: Server) -> None:
    _open(tab, server, "overview", "#page h1, #page .ps-report")
    _tab_to(tab, "#menu a[href*='kernels']")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".ag-row")
    before = tab.page.url
    tab.page.evaluate("document.activeElement.blur()")
    _tab_to(tab, "#which")
    held = tab.page.input_value("#which")
    tab.page.keyboard.press("ArrowDown")
    tab.page.wait_for_selector("[role=option]")
    other = "second" if "first" in held else "first"
    tab.page.keyboard.press("Control+a")
    tab.page.keyboard.type(other)
    tab.page.keyboard.press("ArrowDown")
    tab.page.keyboard.press("Enter")
    tab.until(f"location.href !== '{before}'")
    assert other in tab.page.url
    tab.page.evaluate("document.activeElement.blur()")
    _tab_to(tab, "#dark")
    tab.page.keyboard.press("Space")
    tab.until("document.documentElement.dataset.psScheme === 'dark'")


def test_the_timeline_is_walked_from_its_first_event(tab: Tab, server: Server) -> None:
    _open(tab, server, "timeline", READY)
    _tab_to(tab, ".ps-tl-canvas")
    tab.page.keyboard.press("ArrowRight")
    tab.page.wait_for_selector(".ps-tl-panel h2")
    first = tab.page.inner_text(".ps-tl-panel h2")
    assert first == "ProfilerStep#1"
    tab.page.keyboard.press("Escape")
    tab.until("!document.querySelector('.ps-tl-panel h2')")
    assert tab.page.evaluate("document.activeElement.className") == "ps-tl-canvas"
    assert tab.wrong == []


def test_a_grid_is_one_stop_and_enter_follows_its_link(tab: Tab, server: Server) -> None:
    _open(tab, server, "kernels", ".ag-row")
    _tab_to(tab, ".ag-cell")
    tab.page.keyboard.press("ArrowDown")
    row = tab.page.evaluate("document.activeElement.closest('.ag-row').getAttribute('row-index')")
    assert row == "1"
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(READY)
    assert "name=" in tab.page.url


def test_the_flame_graph_by_keys(tab: Tab, server: Server) -> None:
    _open(tab, server, "flame", ".ps-flame[data-ready]")
    _tab_to(tab, ".ps-tl-canvas")
    tab.page.keyboard.press("ArrowDown")
    tab.page.wait_for_selector(".ps-tl-panel h2")
    tab.page.keyboard.press("Enter")
    flame = "document.querySelector('.ps-flame').perfscope"
    assert tab.page.evaluate(f"{flame}.zoomed") > 0
    tab.page.keyboard.press("Escape")
    assert tab.page.evaluate(f"{flame}.zoomed") == 0


def test_nothing_moves_for_those_who_ask(tab: Tab, server: Server) -> None:
    _open(tab, server, "overview", "#page h1, #page .ps-report")
    longest = """Math.max(...[...document.querySelectorAll('*')].flatMap((one) => {
      const style = getComputedStyle(one);
      return [style.transitionDuration, style.animationDuration].flatMap((each) => each.split(',').map(parseFloat));
    }))"""
    assert tab.page.evaluate(longest) > 0.05
    tab.page.emulate_media(reduced_motion="reduce")
    assert tab.page.evaluate(longest) < 0.001


@pytest.fixture(scope="module")
def menu_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, list[str]]]:
    home = tmp_path_factory.mktemp("menu")
    files = [_trace(home / "first.json.gz"), _trace(home / "second.json.gz")]
    with serving(home, *files) as server:
        yield server, [item.key for item in Shelf(files).items()]


@pytest.mark.parametrize("page", ["Runs", "History", "Compare"])
def test_the_way_back_is_to_the_same_run(tab: Tab, menu_server: tuple[Server, list[str]], page: str) -> None:
    server, keys = menu_server
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


def test_what_was_looked_at_is_what_is_compared(tab: Tab, menu_server: tuple[Server, list[str]]) -> None:
    server, keys = menu_server
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


def test_on_a_phone_the_open_page_is_in_sight(tab: Tab, menu_server: tuple[Server, list[str]]) -> None:
    server, keys = menu_server
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.open(f"{server.base}overview?token={server.token}", ".ps-over")
    for page in ("findings", "overview"):
        tab.open(f"{server.base}{page}?run={keys[0]}", "#menu .ps-here")
        tab.until(
            """(() => { const box = document.querySelector('#menu .ps-here').getBoundingClientRect();
            return box.left >= 0 && box.right <= window.innerWidth; })()"""
        )
    assert tab.wrong == []


SLOW_MS = 1_500
"""More than the time between two looks at the server."""


def test_a_page_that_takes_longer_than_a_tick_is_shown(tab: Tab, server: Server) -> None:
    _open(tab, server, "overview", "#page h1:has-text('Overview')")
    network = tab.page.context.new_cdp_session(tab.page)
    network.send("Network.enable")
    slow = {"offline": False, "latency": SLOW_MS, "downloadThroughput": -1, "uploadThroughput": -1}
    network.send("Network.emulateNetworkConditions", slow)
    tab.page.click("#menu a:has-text('Findings')")
    tab.page.wait_for_selector("#page h1:has-text('Findings')", timeout=10 * SLOW_MS)
    assert tab.wrong == []
