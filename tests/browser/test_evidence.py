"""From a finding to the very interval in which it shows, by click and by key; and why another has none."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perfscope.dashboards.server.shelf import Shelf
from tests.browser.conftest import Server, Tab, serving
from tests.browser.test_timeline import READY
from tests.conftest import REPOSITORY

FIXTURES = REPOSITORY / "fixtures"
THINGS = {"run": FIXTURES / "cpu-attention-naive", "program": FIXTURES / "programs-h100" / "attention-naive"}
CHOSEN = """(() => {
  const one = document.querySelector('.ps-timeline').perfscope;
  const chosen = one.chosen, finding = chosen && chosen.one.finding;
  return chosen && { rule: finding.rule, how: finding.how, view: one.view, area: one.area,
                     at: chosen.at };
})()"""
SUMS = """(() => {
  const one = document.querySelector('.ps-timeline').perfscope;
  return one.wire.json('selection', { trace: 0, t0: one.wire.absolute(one.traces[0], one.area.t0),
    t1: one.wire.absolute(one.traces[0], one.area.t1), lanes: `0-${one.traces[0].lanes.length - 1}` })
    .then((found) => found.rows.map((row) => one.wire.name(one.traces[0], row.name)));
})()"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    home = tmp_path_factory.mktemp("evidence")
    with serving(home, *THINGS.values()) as server:
        items = Shelf(list(THINGS.values())).items()
        yield server, {name: item.key for name, item in zip(THINGS, items, strict=True)}


def _open(tab: Tab, served: tuple[Server, dict[str, str]], page: str, thing: str, ready: str) -> None:
    server, keys = served
    tab.open(f"{server.base}{page}?token={server.token}&run={keys[thing]}", ready)


def test_three_clicks_lead_from_the_step_to_the_fix_and_to_what_runs(
    tab: Tab, served: tuple[Server, dict[str, str]]
) -> None:
    _open(tab, served, "overview", "run", ".ps-first a")
    tab.page.click(".ps-first a")  # to the finding: its line, and what to do
    tab.page.wait_for_selector(".ps-finding details[open]")
    words = tab.page.inner_text(".ps-finding")
    assert "attention.py:36" in words
    assert "scaled_dot_product_attention" in words
    tab.page.click(".ps-look a")  # to its longest piece
    tab.page.wait_for_selector(READY)
    tab.until(CHOSEN)
    found = tab.page.evaluate(CHOSEN)
    assert (found["rule"], found["how"]) == ("unfused-attention", "piece")
    piece, view = found["area"]["t1"] - found["area"]["t0"], found["view"]["t1"] - found["view"]["t0"]
    assert 0.2 < piece / view < 0.9  # with what is around it
    assert set(tab.page.evaluate(SUMS)) & {"aten::div", "aten::masked_fill", "aten::_softmax", "aten::softmax",
                                           "aten::_softmax_backward_data"}  # fmt: skip
    tab.page.click("text=what runs in it")
    tab.page.wait_for_selector(".ps-tl-panel tbody tr")
    assert tab.wrong == []


def test_keys_alone_lead_there_too(tab: Tab, served: tuple[Server, dict[str, str]]) -> None:
    _open(tab, served, "findings", "run", ".ps-look a")
    tab.page.focus(".ps-look a")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(READY)
    tab.until(CHOSEN)
    first = tab.page.evaluate(CHOSEN)
    tab.page.focus(".ps-tl-canvas")
    tab.page.keyboard.press("ArrowRight")
    tab.until(f"{CHOSEN}.at !== {first['at']} || {CHOSEN}.at === 19")
    assert tab.wrong == []


def test_of_a_program_that_never_ran_the_page_says_so(tab: Tab, served: tuple[Server, dict[str, str]]) -> None:
    _open(tab, served, "findings", "program", ".ps-look")
    assert "no piece of time: compiled program: nothing ran" in tab.page.inner_text("#page")
    tab.page.click("text=the graph around it")
    tab.page.wait_for_selector(".ps-graph[data-ready='1'], [data-ready='1']")
    assert "unfused-attention" in tab.page.inner_text("#page")
    assert tab.wrong == []
