"""Every page of twelve kinds of input: content, every link answered, a quiet console, no request elsewhere, axe."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from perfscope.dashboards.web.pages import page_module, pages
from perfscope.dashboards.web.server.shelf import Shelf
from tests.browser.axe import axe_source, violations_above_minor
from tests.browser.conftest import Server, Tab, serving
from tests.browser.kinds import KINDS, Kind

SHOWN = """document.querySelector('#page h1, #page .ps-report')
    && !/^(Reading|Comparing)/.test(document.querySelector('#page h1')?.innerText)
    && !document.querySelector('#page [aria-label=reading]')
    && !document.getElementById('page').innerText.includes('are being read.')
    && [...document.querySelectorAll('.ps-timeline')].every((one) => one.dataset.ready)"""
GRIDS = """[...document.querySelectorAll('[id$=-search]')].every((one) => {
  const head = one.closest('.ps-grid')?.querySelector('[role=columnheader]');
  head?.scrollIntoView({ block: 'center' });
  return head && getComputedStyle(head).visibility === 'visible';
})"""
"""The grids' code loads late, and a grid is hidden until it was on the screen. Each is below its search."""
SETTLE_MS = 250
"""Rows of grids and figures come after the page's heading."""
WIDTHS = (1280, 820, 390)
MOST_ALIKE = 6
"""Links of one page to another with the same parameters: the first ones are followed. In the everyday tests only the
first to each page that is not yet shown is, whichever page has it."""
PRESSED = """(address) => {
  history.pushState({}, '', address);
  dispatchEvent(new CustomEvent('_dashprivate_pushstate'));
}"""
"""What dcc.Link does."""
LINKS = """(() => {
  const links = [...document.querySelectorAll('#page a[href], #menu a[href]')].map((one) => one.getAttribute('href'));
  const drawn = [...document.querySelectorAll('.js-plotly-plot')].flatMap((one) => one.data)
      .flatMap((one) => one.customdata || []).map(String).filter((one) => one.startsWith('/'));
  return [...links, ...drawn];
})()"""
"""Links, and targets of clicks on figures."""
LEAST_WORDS = 20
"""Characters on a page that has anything to say."""
STATUS = "document.querySelector('.ps-tl-status')?.textContent || ''"
DEAD_ENDS = (
    "There is no such page", "cannot be shown", "No such run or trace", "No such comparison", "No drawn node",
    "No findings.",
)  # fmt: skip


def _marks(kind: Kind) -> list[pytest.MarkDecorator]:
    return [*([] if kind.everyday else [pytest.mark.slow]), *([pytest.mark.corpus] if kind.corpus else [])]


EACH_KIND = pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.name, marks=_marks(kind)) for kind in KINDS])


@pytest.fixture
def opened(kind: Kind, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Server, str]]:
    """A server of the kind's input, and the address it begins at."""
    if kind.corpus:
        request.getfixturevalue("corpus")
    home, cache = tmp_path / "perfscope-runs", tmp_path / "cache"
    home.mkdir()
    cache.mkdir()
    paths = kind.paths(home)
    keys = [item.key for item in Shelf(paths).items()]
    with serving(cache, *paths) as server:
        yield server, kind.start.format(*keys)


def _show(tab: Tab, address: str) -> None:
    tab.page.goto(address)
    tab.until(SHOWN)
    tab.page.wait_for_timeout(SETTLE_MS)


def _press(tab: Tab, server: Server, href: str) -> None:
    """Go to another page as a press on its link does, without loading the code of all pages again."""
    title = page_module(urlsplit(href).path.strip("/")).TITLE
    tab.page.evaluate(PRESSED, f"{server.base}{href.lstrip('/')}")
    tab.until(f"{SHOWN} && document.querySelector('#page h1').innerText === {json.dumps(title)}")
    tab.page.wait_for_timeout(SETTLE_MS)


def _pages(tab: Tab, server: Server, start: str) -> dict[str, str]:
    """The address of every page: those of the menu, and the one it begins with."""
    _show(tab, f"{server.base}{start}&token={server.token}")
    menu = tab.page.evaluate("[...document.querySelectorAll('#menu a')].map((one) => one.getAttribute('href'))")
    found = {urlsplit(href).path.strip("/"): f"{server.base}{href.lstrip('/')}" for href in menu}
    assert list(found) == list(pages())
    return found | {start.partition("?")[0]: f"{server.base}{start}"}


def _dead_end(tab: Tab, server: Server, href: str, *, everyday: bool = False) -> str:
    """What is wrong with a link's target; ``""`` if it shows what the link names."""
    try:
        return _wrong_with(tab, server, href, everyday=everyday)
    except AssertionError as error:
        return str(error)


def _wrong_with(tab: Tab, server: Server, href: str, *, everyday: bool) -> str:
    if urlsplit(href).path.startswith("/api/"):
        rows = tab.page.evaluate("(href) => fetch(href).then((answer) => answer.ok ? answer.text() : '')", href)
        return "" if len(rows.splitlines()) > 1 else "no table"
    if everyday and urlsplit(href).path.strip("/") != urlsplit(tab.page.url).path.strip("/"):
        _press(tab, server, href)
    else:
        _show(tab, f"{server.base}{href.lstrip('/')}")
    words = tab.page.inner_text("#page")
    for bad in DEAD_ENDS:
        if bad in words:
            return bad
    page, asked = urlsplit(href).path.strip("/"), parse_qs(urlsplit(href).query)
    title = page_module(page).TITLE
    if tab.page.inner_text("#page h1 >> nth=0") != title:
        return f"it is not the page {title}"
    if "run" in asked and not asked["run"][0].startswith(tab.page.input_value("#which") or "nothing"):
        return "it is of another run"
    if page == "findings" and "at" in asked and tab.page.locator(".ps-finding").count() != 1:
        return "not the one finding"
    if page == "timeline" and {"mark", "finding"} & set(asked):
        tab.until("document.querySelector('.ps-tl-panel h2')")
    elif page == "timeline" and {"name", "find"} & set(asked):
        tab.until(f"({STATUS}) !== ''")
        status = str(tab.page.evaluate(STATUS))
        return status if status.startswith(("0 ", "not a regular")) else ""
    return "" if len(words) > LEAST_WORDS else "nothing is on it"


def _quiet(tab: Tab) -> None:
    assert tab.wrong == []
    assert tab.went_away() == []


@EACH_KIND
def test_every_page_and_every_link(tab: Tab, opened: tuple[Server, str], kind: Kind) -> None:
    follow_links(tab, *opened, everyday=kind.everyday)


def follow_links(tab: Tab, server: Server, start: str, *, everyday: bool) -> None:
    """Show every page in three widths, and follow its links; ``everyday``: one of those that are alike on all pages."""
    followed: Counter[tuple[Any, ...]] = Counter()
    links: dict[str, str] = {}
    found = _pages(tab, server, start)
    for name, address in found.items():
        if everyday and name != start.partition("?")[0]:
            _press(tab, server, address.removeprefix(server.base))
        else:
            _show(tab, address)
        words = tab.page.inner_text("#page")
        assert len(words) > LEAST_WORDS, name
        assert "cannot be shown" not in words, (name, words)
        assert tab.page.inner_text("#page h1 >> nth=0") == page_module(name).TITLE
        for href in tab.page.evaluate(LINKS):
            target = (urlsplit(href).path, *sorted(parse_qs(urlsplit(href).query)))
            shape = target[:1] if everyday else (name, *target)
            followed[shape] += 1
            shown = f"{server.base}{href.lstrip('/')}" in found.values()
            if href.startswith("/") and not shown and followed[shape] <= (1 if everyday else MOST_ALIKE):
                links.setdefault(href, name)
        for width in WIDTHS:
            tab.page.set_viewport_size({"width": width, "height": 900})
            tab.until("document.documentElement.scrollWidth <= window.innerWidth")
    assert links
    wrong = [
        f"{name} -> {href}: {bad}"
        for href, name in links.items()
        if (bad := _dead_end(tab, server, href, everyday=everyday))
    ]
    assert wrong == [], "\n".join(wrong)
    _quiet(tab)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe_source(tmp_path_factory.mktemp("axe"))


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@EACH_KIND
def test_axe_finds_nothing_but_the_minor(tab: Tab, opened: tuple[Server, str], axe: str, scheme: str) -> None:
    tab.page.emulate_media(color_scheme=scheme)
    found: list[str] = []
    for name, address in _pages(tab, *opened).items():
        _show(tab, address)
        tab.until(f"document.documentElement.dataset.psScheme === '{scheme}'")
        tab.page.evaluate("document.querySelectorAll('#page details').forEach((one) => { one.open = true; })")
        tab.until(GRIDS)
        tab.page.wait_for_timeout(SETTLE_MS)
        found += [f"{name}: {one['rule']} at {at}" for one in violations_above_minor(tab.page, axe) for at in one["at"]]
    assert found == [], "\n".join(found)
    _quiet(tab)
