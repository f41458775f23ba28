"""Two timelines below a comparison: step against step, rows of the waterfall as links, launches of an A/B."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.dashboards.reports.compare_json import as_text
from tests.browser.conftest import Server, Tab, serving
from tests.browser.kineto import Kineto
from tests.commands.kept_runs import ITEM, PLAIN, put_run
from tests.dashboards.compared import in_turns

pytestmark = pytest.mark.slow

READY = ".ps-timeline[data-ready='1']"
STEPS = 4
BEFORE_US = {"base": 300, "head": 7_700}
"""What is recorded before the first step."""
STEP_US = {"base": 1_000, "head": 1_400}
EXTRA = "aten::cumsum"
KEYS = "[...document.querySelectorAll('.ag-row a')].map((one) => one.href.split('run=')[1])"

SIDES = """['base', 'head'].map((side) => {
  const one = document.getElementById(`timeline-${side}`).perfscope, trace = one.traces[0];
  const at = (number) => one.wire.relative(trace, trace.steps[number][1]);
  return { first: at(0), third: at(2), view: one.view, step: one.step_at, origin: trace.origin,
           selected: one.selected && one.selected.text, find: one.find.value };
})"""


def _trace(path: Path, side: str) -> Path:
    """Steps behind a beginning of another length; the head's have one more op."""
    made = Kineto()
    made.add("cpu_op", "aten::empty", 1, 0, 5)
    for step in range(STEPS):
        at = BEFORE_US[side] + STEP_US[side] * step
        made.add("user_annotation", f"ProfilerStep#{step}", 1, at, STEP_US[side])
        made.launched("aten::mm", "sgemm_128x128", at + 10, 500, step + 1)
        if side == "head":
            made.launched(EXTRA, "scan_kernel", at + 610, 400, 100 + step)
    return made.write(path)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("pair")
    runs = home / "runs"
    profiled = runs / "ab-20260101-main" / "profiled"
    profiled.mkdir(parents=True)
    for number, (arm, pair) in enumerate((arm, pair) for pair in (1, 2) for arm in ("base", "head")):
        made = put_run(profiled, number, fixture=PLAIN if arm == "base" else ITEM)
        made.rename(profiled / f"20260101-00000{number}-{arm}-{pair}-{number:04x}")
    (profiled.parent / "result.json").write_text(as_text(in_turns()))
    with serving(home, *(_trace(home / f"{side}.json.gz", side) for side in STEP_US), runs) as held:
        yield held


def _keys(tab: Tab, server: Server) -> list[str]:
    tab.open(f"{server.base}runs?token={server.token}", ".ag-row a")
    found: list[str] = tab.page.evaluate(
        "[...document.querySelectorAll('.ag-row a')].map((one) => one.href.split('run=')[1])"
    )
    return found


def _pair(tab: Tab, server: Server, query: str = "") -> None:
    base, head = _keys(tab, server)[:2]
    tab.open(f"{server.base}compare?base={base}&head={head}{query}", ".verdict")
    tab.until(f"document.querySelectorAll(`{READY}`).length === 2")


def test_both_stand_at_their_first_step_on_one_scale(tab: Tab, server: Server) -> None:
    _pair(tab, server)
    base, head = tab.page.evaluate(SIDES)
    assert (base["first"], head["first"]) == (0, 0)
    assert base["view"] == head["view"]
    assert base["view"]["t0"] < -1_000 * BEFORE_US["head"]  # what came before is there, left of zero
    assert (base["third"], head["third"]) == (2_000 * STEP_US["base"], 2_000 * STEP_US["head"])
    assert tab.wrong == []


def test_a_step_is_laid_against_any_other(tab: Tab, server: Server) -> None:
    _pair(tab, server)
    tab.page.select_option("#timeline-base .ps-tl-step", "2")
    base, head = tab.page.evaluate(SIDES)
    assert (base["step"], head["step"], base["third"], head["third"]) == (2, 2, 0, 0)
    assert base["view"] == head["view"]
    assert 1_000 * STEP_US["head"] <= base["view"]["t1"] <= 1_200 * STEP_US["head"]
    tab.page.select_option("#timeline-head .ps-tl-step", "1")
    base, head = tab.page.evaluate(SIDES)
    assert (base["step"], head["step"], base["third"], head["third"]) == (2, 1, 0, 1_000 * STEP_US["head"])
    tab.until("location.search.includes('base_step=2') && location.search.includes('head_step=1')")
    view = head["view"]
    tab.open(tab.page.url, READY)  # the address brings it back
    tab.until(f"document.querySelectorAll(`{READY}`).length === 2")
    base, head = tab.page.evaluate(SIDES)
    assert (base["step"], head["step"]) == (2, 1)
    assert head["view"] == pytest.approx(view, abs=1)
    assert tab.wrong == []


def test_a_row_of_the_waterfall_leads_to_its_place(tab: Tab, server: Server) -> None:
    _pair(tab, server)
    tab.page.eval_on_selector_all("#page details", "(all) => all.forEach((one) => { one.open = true; })")
    link = tab.page.locator(f".fall a:has-text('{EXTRA}')").first
    assert "find=" in (link.get_attribute("href") or "")
    link.click()
    tab.until("document.getElementById('timeline-head').perfscope.selected")
    base, head = tab.page.evaluate(SIDES)
    assert head["selected"] == EXTRA
    assert head["find"] == f"^({EXTRA})$"
    assert base["view"] == head["view"]
    assert tab.page.url.startswith(f"{server.base}compare")
    assert tab.wrong == []


def test_an_ab_has_the_timelines_of_the_launches_it_profiled(tab: Tab, server: Server) -> None:
    keys = _keys(tab, server)
    assert not any("-base-" in key for key in keys)  # they are no runs of their own in a list
    tab.open(f"{server.base}compare", "#compare-stored")
    tab.page.click("#compare-stored")
    tab.page.click("[role=option]:visible:has-text('ab-20260101-main')")
    tab.page.wait_for_selector(".verdict", timeout=60_000)
    tab.until(f"document.querySelectorAll(`{READY}`).length === 2")
    titles = tab.page.eval_on_selector_all("#page h3", "(all) => all.map((one) => one.innerText)")
    assert [one for one in titles if "-base-1-" in one or "-head-1-" in one] == [
        "base: 20260101-000000-base-1-0000", "head: 20260101-000001-head-1-0001",
    ]  # fmt: skip
    tab.page.locator("input[value='20260101-000001-head-1-0001']").first.click()
    tab.page.click("[role=option]:visible:has-text('-head-2-')")
    tab.until("location.search.includes('head_run=')")
    tab.page.wait_for_selector("h3:has-text('-head-2-')", timeout=60_000)
    tab.until(f"document.querySelectorAll(`{READY}`).length === 2")
    base, head = tab.page.evaluate(SIDES)
    assert (base["first"], head["first"]) == (0, 0)
    tab.page.click("h3:has-text('-head-2-') a")
    tab.page.wait_for_selector(f"#timeline{READY}")
    assert tab.wrong == []
