"""axe finds nothing but the minor on any page, light or dark, of a PyTorch trace, several ranks and a JAX one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.dashboards.web.pages import PAGES
from perfscope.dashboards.web.server.shelf import Shelf
from tests.browser.axe import axe_source, violations_above_minor
from tests.browser.conftest import Server, Tab, serving
from tests.conftest import CORPUS, corpus_files

pytestmark = [pytest.mark.corpus, pytest.mark.slow]

SHOWN = """document.querySelector('#page h1, #page .ps-report')
    && !document.querySelector('#page h1')?.innerText.startsWith('Reading')"""
KINDS = ("pytorch", "ranks", "jax")
GRIDS = """[...document.querySelectorAll('[id$=-search]')].every((one) => {
  const head = one.closest('.ps-grid')?.querySelector('[role=columnheader]');
  head?.scrollIntoView({ block: 'center' });
  return head && getComputedStyle(head).visibility === 'visible';
})"""
"""The grids' code comes late, and a grid is hidden until it has been on the screen. Each stands below its search."""
SETTLE_MS = 500
"""Grids, figures and the timeline come after the page's heading."""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe_source(tmp_path_factory.mktemp("axe"))


@pytest.fixture(scope="module")
def things(axe: str, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    home = tmp_path_factory.mktemp("accessible")
    ranks = home / "ranks"
    ranks.mkdir()
    for file in corpus_files("kineto", "torchrec__sst_sleep*"):
        (ranks / file.name).symlink_to(file)
    planes = [one for one in corpus_files("xplane") if "CORRUPT" not in one.name]
    planes.sort(key=lambda file: file.stat().st_size)
    found = {
        "pytorch": CORPUS / "kineto" / "TraceLens__h100_bert-small.json.gz",
        "ranks": ranks,
        "jax": planes[len(planes) // 2],
    }
    with serving(home, *found.values()) as server:
        keys = {kind: item.key for kind, item in zip(found, Shelf(list(found.values())).items(), strict=True)}
        yield server, keys


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_axe(tab: Tab, things: tuple[Server, dict[str, str]], axe: str, kind: str, scheme: str) -> None:
    server, keys = things
    tab.page.goto(f"{server.base}overview?token={server.token}&run={keys[kind]}")
    if scheme == "dark":
        tab.page.wait_for_selector("#dark", state="attached")
        tab.page.focus("#dark")
        tab.page.keyboard.press("Space")
        tab.until("document.documentElement.dataset.psScheme === 'dark'")
    found: list[str] = []
    for name in PAGES:
        tab.page.goto(f"{server.base}{name}?run={keys[kind]}")
        tab.until(SHOWN)
        tab.until(f"document.documentElement.dataset.psScheme === '{scheme}'")
        tab.page.wait_for_timeout(SETTLE_MS)
        tab.page.evaluate("document.querySelectorAll('#page details').forEach((one) => { one.open = true; })")
        tab.until(GRIDS)
        tab.page.wait_for_timeout(SETTLE_MS)
        found += [f"{name}: {one['rule']} at {at}" for one in violations_above_minor(tab.page, axe) for at in one["at"]]
    assert found == [], "\n".join(found)
