"""Every page on every kind of recording: content, a quiet console, no request elsewhere, no finding of axe."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.dashboards.web.pages import PAGES
from perfscope.dashboards.web.server.shelf import Shelf
from tests.browser.axe import axe_source, violations_above_minor
from tests.browser.conftest import Server, Tab, serving
from tests.conftest import CORPUS, REPOSITORY, corpus_files

pytestmark = pytest.mark.corpus

SHOWN = """document.querySelector('#page h1, #page .ps-report')
    && !document.querySelector('#page h1')?.innerText.startsWith('Reading')"""
GRIDS = """[...document.querySelectorAll('[id$=-search]')].every((one) => {
  const head = one.closest('.ps-grid')?.querySelector('[role=columnheader]');
  head?.scrollIntoView({ block: 'center' });
  return head && getComputedStyle(head).visibility === 'visible';
})"""
"""The grids' code comes late, and a grid is hidden until it has been on the screen. Each stands below its search."""
SETTLE_MS = 500
"""Grids, figures and the timeline come after the page's heading."""
WIDTHS = (1280, 820, 390)

KINDS = ("pytorch", "jax", "ranks", "program", "snapshot")
EVERYDAY = ("pytorch",)


def _things(home: Path) -> dict[str, Path]:
    """A recording of PyTorch and of JAX, a job of four ranks, a compiled program, a memory snapshot."""
    ranks = home / "ranks"
    ranks.mkdir()
    for file in corpus_files("kineto", "torchrec__sst_sleep*"):
        (ranks / file.name).symlink_to(file)
    programs = sorted((REPOSITORY / "fixtures" / "h100-programs").glob("*.pb*"))
    snapshots = sorted(corpus_files("torch_mem"), key=lambda file: file.stat().st_size)
    planes = sorted(
        (one for one in corpus_files("xplane") if "CORRUPT" not in one.name), key=lambda file: file.stat().st_size
    )
    return {
        "pytorch": CORPUS / "kineto" / "TraceLens__h100_bert-small.json.gz",
        "jax": planes[len(planes) // 2],
        "ranks": ranks,
        "program": programs[0],
        "snapshot": snapshots[len(snapshots) // 2],
    }


@pytest.fixture(scope="module")
def things(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    home = tmp_path_factory.mktemp("pages")
    found = _things(home)
    with serving(home, *found.values()) as server:
        keys = {kind: item.key for kind, item in zip(found, Shelf(list(found.values())).items(), strict=True)}
        yield server, keys
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    return axe_source(tmp_path_factory.mktemp("axe"))


@pytest.mark.parametrize(
    "kind", [kind if kind in EVERYDAY else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_pages(tab: Tab, things: tuple[Server, dict[str, str]], kind: str) -> None:
    server, keys = things
    tab.page.goto(f"{server.base}overview?token={server.token}&run={keys[kind]}")
    for name in PAGES:
        tab.page.goto(f"{server.base}{name}?run={keys[kind]}")
        tab.until(SHOWN)
        tab.page.wait_for_timeout(400)
        words = tab.page.inner_text("#page")
        assert len(words) > 20, (kind, name)
        assert "cannot be shown" not in words, (kind, name, words)
        for width in WIDTHS:
            tab.page.set_viewport_size({"width": width, "height": 900})
            tab.until("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.wrong == []
    assert tab.went_away() == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["pytorch", "ranks", "jax"])
def test_axe_finds_nothing_but_the_minor(
    tab: Tab, things: tuple[Server, dict[str, str]], axe: str, kind: str, scheme: str
) -> None:
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
