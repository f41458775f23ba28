"""Two things compared in a browser: chosen, ticked, shown with their timelines; and the history beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.dashboards.reports.compare_json import as_text
from perfscope.profiler.store.runs import RunStore
from tests.browser.conftest import Server, Tab, serving
from tests.browser.kineto import Kineto
from tests.dashboards.compared import in_turns
from tests.dashboards.test_history_reports import runs

pytestmark = pytest.mark.slow

HOSTILE = "aten::<img src=x onerror=alert(1)>"
PATTERN = "find=%5Eaten%3A%3A%3Cimg"
HLO = "HloModule small\n\nENTRY main {\n  p = f32[8]{0} parameter(0)\n  ROOT n = f32[8]{0} negate(p)\n}\n"
KEYS = "[...document.querySelectorAll('.ag-row a')].map((one) => one.href.split('run=')[1])"
READY = ".ps-timeline[data-ready='1']"
STEPS, STEP_US = 4, 1_000


def _trace(path: Path, *, more: bool) -> Path:
    """Steps of one op with a kernel; with ``more`` of another one with a hostile name."""
    made = Kineto()
    for step in range(STEPS):
        at = STEP_US * step
        made.add("user_annotation", f"ProfilerStep#{step}", 1, at, STEP_US)
        made.launched("aten::mm", "sgemm_128x128", at + 10, 500, step + 1)
        if more:
            made.launched(HOSTILE, "reduce_kernel", at + 610, 200, 100 + step)
    return made.write(path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("compare")
    program = home / "small.hlo.txt"
    program.write_text(HLO)
    document = home / "kept.json"
    document.write_text(as_text(in_turns()))
    store = home / "history"
    store.mkdir()
    held = RunStore(store / "store.sqlite")
    for run in runs():
        held.put(run)
    before, after = _trace(home / "before.json.gz", more=False), _trace(home / "after.json.gz", more=True)
    with serving(home, before, after, program, document, store) as made:
        yield made


def _keys(tab: Tab, server: Server) -> list[str]:
    tab.open(f"{server.base}runs?token={server.token}", ".ag-row a")
    found: list[str] = tab.page.evaluate(KEYS)
    return found


def test_two_that_are_ticked_are_compared(tab: Tab, server: Server) -> None:
    _keys(tab, server)
    assert "Tick two" in tab.page.inner_text("#runs-chosen")
    for name in ("before.json.gz", "after.json.gz"):
        tab.page.click(f".ag-row:has-text('{name}') input[type=checkbox]")
    tab.page.wait_for_selector("#runs-chosen a")
    assert "before.json.gz" in tab.page.inner_text("#runs-chosen a")
    tab.page.click("#runs-chosen a")
    tab.page.wait_for_selector(".verdict", timeout=60_000)
    assert "base=" in tab.page.url
    assert "head=" in tab.page.url
    assert tab.wrong == []


def test_the_verdict_its_places_and_both_timelines(tab: Tab, server: Server) -> None:
    before, after, *_ = _keys(tab, server)
    tab.open(f"{server.base}compare?base={before}&head={after}", ".verdict")
    tab.until(f"document.querySelectorAll(`{READY}`).length === 2")
    words = tab.page.inner_text("#page")
    assert "kernels a step" in words
    assert f"new: {HOSTILE}, 1 a step" in words
    assert tab.page.query_selector("#page img") is None
    link = tab.page.get_attribute(".ps-look a:has-text('onerror')", "href")
    assert f"run={after}" in link
    assert PATTERN in link
    tab.page.focus("#timeline-base canvas")
    tab.page.keyboard.press("w")
    views = "['base','head'].map((side) => document.getElementById(`timeline-${side}`).perfscope.view)"
    tab.until(f"(() => {{ const [a, b] = {views}; return a.t0 === b.t0 && a.t1 === b.t1; }})()")
    first, second = tab.page.evaluate(views)
    assert first == second
    assert first["t1"] - first["t0"] < 0.8 * STEPS * STEP_US * 1000
    assert tab.wrong == []
    assert tab.went_away() == []


def test_what_is_chosen_stands_in_the_address(tab: Tab, server: Server) -> None:
    before, *_ = _keys(tab, server)
    tab.open(f"{server.base}compare", "[role=alert]")
    assert "Choose what to compare" in tab.page.inner_text("[role=alert]")
    tab.page.click("#compare-base")
    tab.page.click("[role=option]:visible:has-text('before.json.gz')")
    tab.until(f"location.search === '?base={before}'")
    assert tab.wrong == []


def test_two_kinds_are_one_line(tab: Tab, server: Server) -> None:
    before, _, program = _keys(tab, server)[:3]
    tab.open(f"{server.base}compare?base={before}&head={program}", "[role=alert]")
    tab.until("document.querySelector('[role=alert]')?.innerText.includes('kind')")
    assert server.process.poll() is None
    assert tab.wrong == []


def test_one_that_was_kept_shows_its_launches(tab: Tab, server: Server) -> None:
    _keys(tab, server)
    tab.page.click("text=kept.json")
    tab.page.wait_for_selector(".ps-launches", timeout=60_000)
    tab.page.locator("#compare-kernels-grid").scroll_into_view_if_needed()
    tab.until("document.querySelector('#compare-kernels-grid').textContent.includes('flash_fwd_kernel')")
    assert "0.0020" in tab.page.text_content("#compare-kernels-grid")
    assert "regression" in tab.page.inner_text(".verdict")
    assert tab.wrong == []


def test_a_history_and_one_metric_of_it(tab: Tab, server: Server) -> None:
    tab.open(f"{server.base}history?token={server.token}", ".ps-history")
    assert "step time 10.0 ms -> 12.0 ms" in tab.page.inner_text("#page")
    tab.page.click("a:has-text('host syncs a step')")
    tab.until("location.search.includes('metric=host')")
    tab.until("document.querySelector('#page .ps-report h3')?.innerText.startsWith('host syncs')")
    assert tab.wrong == []
    assert tab.went_away() == []


def test_without_a_store_it_says_how_to_get_one(tab: Tab, tmp_path: Path) -> None:
    with serving(tmp_path, _trace(tmp_path / "one.json.gz", more=False)) as alone:
        tab.open(f"{alone.base}history?token={alone.token}", "[role=alert]")
        assert "perfscope history" in tab.page.inner_text("[role=alert]")
        tab.page.goto(f"{alone.base}compare")
        tab.until("document.querySelector('[role=alert]')?.innerText.includes('perfscope serve BASE HEAD')")
        assert tab.wrong == []
