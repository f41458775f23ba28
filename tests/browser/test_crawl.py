"""Every link of every page leads to something that shows what it names: no dead end, no word from the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from perfscope.dashboards.web.pages import PAGES
from perfscope.dashboards.web.server.shelf import Shelf
from tests.browser.conftest import Server, Tab, serving
from tests.conftest import CORPUS

pytestmark = [pytest.mark.corpus, pytest.mark.slow]

SHOWN = """document.querySelector('#page h1, #page .ps-report')
    && !document.querySelector('#page h1')?.innerText.startsWith('Reading')"""
SETTLE_MS = 500
MOST_ALIKE = 6
"""Links of one page to another with the same parameters: the first ones are followed."""
LINKS = "[...document.querySelectorAll('#page a[href], #menu a[href]')].map((one) => one.getAttribute('href'))"
STATUS = "document.querySelector('.ps-tl-status')?.textContent || ''"
PLACES = """(() => {
  const plot = document.querySelector('.js-plotly-plot');
  const data = plot ? plot.data.flatMap((one) => one.customdata || []) : [];
  return data.filter((each) => String(each).startsWith('/'));
})()"""
"""Where a click on a figure leads."""


def _things() -> dict[str, Path]:
    return {
        "pytorch": CORPUS / "kineto" / "TraceLens__h100_bert-small.json.gz",
        "snapshot": CORPUS / "torch_mem" / "assignment2-systems__medium512_infer.pickle.gz",
    }


@pytest.fixture(scope="module")
def things(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    home = tmp_path_factory.mktemp("crawl")
    found = _things()
    with serving(home, *found.values()) as server:
        items = Shelf(list(found.values())).items()
        yield server, {kind: item.key for kind, item in zip(found, items, strict=True)}
    shutil.rmtree(home, ignore_errors=True)


def _shape(href: str) -> tuple[str, tuple[str, ...]]:
    parts = urlsplit(href)
    return parts.path, tuple(sorted(parse_qs(parts.query)))


def _show(tab: Tab, address: str) -> None:
    tab.page.goto(address)
    tab.until(SHOWN)
    tab.page.wait_for_timeout(SETTLE_MS)


def _check(tab: Tab, href: str) -> str:
    """What is wrong with the page that is open; ``''``: nothing."""
    words = tab.page.inner_text("#page")
    for bad in ("There is no such page", "cannot be shown", "No such run or trace"):
        if bad in words:
            return bad
    asked = parse_qs(urlsplit(href).query)
    if urlsplit(href).path.endswith("/timeline") and {"name", "find", "mark", "finding"} & set(asked):
        tab.until("document.querySelector('.ps-timeline[data-ready]')")
        if {"mark", "finding"} & set(asked):
            tab.until("document.querySelector('.ps-tl-panel h2')")
        else:
            tab.until(f"({STATUS}) !== ''")
        status = tab.page.evaluate(STATUS)
        return status if status.startswith(("0 ", "not a regular")) else ""
    return "" if len(words) > 20 else "nothing is on it"


@pytest.mark.parametrize("kind", ["pytorch", "snapshot"])
def test_every_link_leads_somewhere(tab: Tab, things: tuple[Server, dict[str, str]], kind: str) -> None:
    server, keys = things
    origin = server.base.rstrip("/")
    _show(tab, f"{server.base}overview?token={server.token}&run={keys[kind]}")
    followed: dict[tuple[str, str, tuple[str, ...]], int] = {}
    links: dict[str, str] = {}
    for name in PAGES:
        _show(tab, f"{server.base}{name}?run={keys[kind]}")
        for href in [*tab.page.evaluate(LINKS), *tab.page.evaluate(PLACES)]:
            shape = (name, *_shape(href))
            if href.startswith("/api/") or not href.startswith("/") or followed.get(shape, 0) >= MOST_ALIKE:
                continue
            followed[shape] = followed.get(shape, 0) + 1
            links.setdefault(href, name)
    assert len(links) >= len(PAGES)
    wrong = []
    for href, name in links.items():
        _show(tab, f"{origin}{href}")
        if problem := _check(tab, href):
            wrong.append(f"{name} -> {href}: {problem}")
    assert wrong == [], "\n".join(wrong)
    assert tab.wrong == []
    assert tab.went_away() == []
