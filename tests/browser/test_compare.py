"""Comparisons in a browser: chosen, ticked, shown with their timelines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.dashboards.report.compare.json import as_text
from tests.browser.conftest import Server, Tab, serving
from tests.browser.kineto import Kineto
from tests.kept_runs import ITEM, PLAIN, put_run
from tests.report.comparisons import interleaved_launches

pytestmark = pytest.mark.slow

HOSTILE = "aten::<img src=x onerror=alert(1)>"
PATTERN = "find=%5Eaten%3A%3A%3Cimg"
HLO = "HloModule small\n\nENTRY main {\n  p = f32[8]{0} parameter(0)\n  ROOT n = f32[8]{0} negate(p)\n}\n"
KEYS = "[...document.querySelectorAll('.ag-row a')].map((one) => one.href.split('run=')[1])"
READY = ".ps-timeline:not(.ps-flame)[data-ready='1']"
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
    document.write_text(as_text(interleaved_launches()))
    before, after = _trace(home / "before.json.gz", more=False), _trace(home / "after.json.gz", more=True)
    with serving(home, before, after, program, document) as made:
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
    words = tab.page.inner_text("#page")
    assert "kernels per step" in words
    assert f"new: {HOSTILE}, 1 per step" in words
    assert tab.page.query_selector("#page img") is None
    link = tab.page.get_attribute(".ps-look a:has-text('onerror')", "href")
    assert f"run={after}" in link
    assert PATTERN in link
    tab.page.click("text=step in parts, timelines")
    tab.until(f"document.querySelectorAll(`{READY}`).length === 2")
    tab.page.focus("#timeline-base canvas")
    tab.page.keyboard.press("w")
    views = "['base','head'].map((side) => document.getElementById(`timeline-${side}`).perfscope.view)"
    tab.until(f"(() => {{ const [a, b] = {views}; return a.t0 === b.t0 && a.t1 === b.t1; }})()")
    first, second = tab.page.evaluate(views)
    assert first == second
    assert first["t1"] - first["t0"] < 0.8 * STEPS * STEP_US * 1000
    assert tab.wrong == []
    assert tab.went_away() == []


UNNUMBERED = HOSTILE.replace("1", "*")
FLAME = """(() => { const { tree, props } = document.querySelector('.ps-flame').perfscope;
    const change = (node) => props.look.categories[tree.category[node]];
    return Object.fromEntries(tree.name.map((name, node) => [name, change(node)])); })()"""


def test_the_step_of_both_by_cause_and_the_changes_of_the_call_tree(tab: Tab, server: Server) -> None:
    before, after, *_ = _keys(tab, server)
    tab.open(f"{server.base}compare?base={before}&head={after}", "#account table")
    assert "compute" in tab.page.text_content("#account table")
    tab.page.click("text=call trees")
    tab.page.wait_for_selector(".ps-flame[data-ready]")
    assert tab.page.evaluate(FLAME) == {"all": "10% to 50% slower", "aten::mm": "equal", UNNUMBERED: "added"}
    tab.page.click("text=width: base")
    tab.until(f"!({FLAME})['{UNNUMBERED}']")
    assert "width=base" in tab.page.url
    tab.page.click("text=step in parts, timelines")
    tab.until(f"document.querySelectorAll(`{READY}`).length === 2")
    tab.page.click(".fall a:has-text('onerror')")  # rows of the waterfall lead to both timelines, past the flame graph
    tab.until("document.getElementById('timeline-head').perfscope.find.value.includes('onerror')")
    assert tab.wrong == []


def test_what_is_chosen_stands_in_the_address(tab: Tab, server: Server) -> None:
    before, *_ = _keys(tab, server)
    tab.open(f"{server.base}compare", "[role=alert]")
    assert "Choose two runs" in tab.page.inner_text("[role=alert]")
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
    tab.page.wait_for_selector(".verdict", timeout=60_000)
    tab.page.click("text=kernels, ranks, method")
    tab.page.wait_for_selector(".ps-plot")
    tab.page.locator("#compare-kernels-grid").scroll_into_view_if_needed()
    tab.until("document.querySelector('#compare-kernels-grid').textContent.includes('flash_fwd_kernel')")
    assert "0.0020" in tab.page.text_content("#compare-kernels-grid")
    assert "Regression" in tab.page.inner_text(".verdict")
    assert tab.wrong == []


def test_with_one_item_it_says_how_to_open_two(tab: Tab, tmp_path: Path) -> None:
    with serving(tmp_path, _trace(tmp_path / "one.json.gz", more=False)) as alone:
        tab.open(f"{alone.base}compare?token={alone.token}", "[role=alert]")
        tab.until("document.querySelector('[role=alert]')?.innerText.includes('perfscope serve BASE HEAD')")
        assert tab.wrong == []


PAIR_STEPS = 4
BEFORE_US = {"base": 300, "head": 7_700}
"""Time recorded before the first step."""
PAIR_STEP_US = {"base": 1_000, "head": 1_400}
EXTRA = "aten::cumsum"

SIDES = """['base', 'head'].map((side) => {
  const one = document.getElementById(`timeline-${side}`).perfscope, trace = one.traces[0];
  const at = (number) => one.wire.relative(trace, trace.steps[number][1]);
  return { first: at(0), third: at(2), view: one.view, step: one.step_at, origin: trace.origin,
           selected: one.selected && one.selected.text, find: one.find.value };
})"""


def _pair_trace(path: Path, side: str) -> Path:
    """Steps after a beginning of another length; the head's have one more op."""
    made = Kineto()
    made.add("cpu_op", "aten::empty", 1, 0, 5)
    for step in range(PAIR_STEPS):
        at = BEFORE_US[side] + PAIR_STEP_US[side] * step
        made.add("user_annotation", f"ProfilerStep#{step}", 1, at, PAIR_STEP_US[side])
        made.launched("aten::mm", "sgemm_128x128", at + 10, 500, step + 1)
        if side == "head":
            made.launched(EXTRA, "scan_kernel", at + 610, 400, 100 + step)
    return made.write(path)


@pytest.fixture(scope="module")
def pair_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("pair")
    runs = home / "runs"
    profiled = runs / "ab-20260101-main" / "profiled"
    profiled.mkdir(parents=True)
    for number, (arm, pair) in enumerate((arm, pair) for pair in (1, 2) for arm in ("base", "head")):
        made = put_run(profiled, number, fixture=PLAIN if arm == "base" else ITEM)
        made.rename(profiled / f"20260101-00000{number}-{arm}-{pair}-{number:04x}")
    (profiled.parent / "result.json").write_text(as_text(interleaved_launches()))
    with serving(home, *(_pair_trace(home / f"{side}.json.gz", side) for side in PAIR_STEP_US), runs) as held:
        yield held


def _pair_keys(tab: Tab, pair_server: Server) -> list[str]:
    tab.open(f"{pair_server.base}runs?token={pair_server.token}", ".ag-row a")
    found: list[str] = tab.page.evaluate(
        "[...document.querySelectorAll('.ag-row a')].map((one) => one.href.split('run=')[1])"
    )
    return found


def _pair(tab: Tab, pair_server: Server, query: str = "") -> None:
    base, head = _pair_keys(tab, pair_server)[:2]
    tab.open(f"{pair_server.base}compare?base={base}&head={head}&show=step{query}", ".verdict")
    tab.until(f"document.querySelectorAll(`{READY}`).length === 2")


def test_both_stand_at_their_first_step_on_one_scale(tab: Tab, pair_server: Server) -> None:
    _pair(tab, pair_server)
    base, head = tab.page.evaluate(SIDES)
    assert (base["first"], head["first"]) == (0, 0)
    assert base["view"] == head["view"]
    assert base["view"]["t0"] < -1_000 * BEFORE_US["head"]  # what came before is there, left of zero
    assert (base["third"], head["third"]) == (2_000 * PAIR_STEP_US["base"], 2_000 * PAIR_STEP_US["head"])
    assert tab.wrong == []


def test_a_step_is_laid_against_any_other(tab: Tab, pair_server: Server) -> None:
    _pair(tab, pair_server)
    tab.page.select_option("#timeline-base .ps-tl-step", "2")
    base, head = tab.page.evaluate(SIDES)
    assert (base["step"], head["step"], base["third"], head["third"]) == (2, 2, 0, 0)
    assert base["view"] == head["view"]
    assert 1_000 * PAIR_STEP_US["head"] <= base["view"]["t1"] <= 1_200 * PAIR_STEP_US["head"]
    tab.page.select_option("#timeline-head .ps-tl-step", "1")
    base, head = tab.page.evaluate(SIDES)
    assert (base["step"], head["step"], base["third"], head["third"]) == (2, 1, 0, 1_000 * PAIR_STEP_US["head"])
    tab.until("location.search.includes('base_step=2') && location.search.includes('head_step=1')")
    view = head["view"]
    tab.open(tab.page.url, READY)  # the address brings it back
    tab.until(f"document.querySelectorAll(`{READY}`).length === 2")
    base, head = tab.page.evaluate(SIDES)
    assert (base["step"], head["step"]) == (2, 1)
    assert head["view"] == pytest.approx(view, abs=1)
    assert tab.wrong == []


def test_a_row_of_the_waterfall_leads_to_its_place(tab: Tab, pair_server: Server) -> None:
    _pair(tab, pair_server)
    tab.page.eval_on_selector_all("#page details", "(all) => all.forEach((one) => { one.open = true; })")
    link = tab.page.locator(f".fall a:has-text('{EXTRA}')").first
    assert "find=" in (link.get_attribute("href") or "")
    link.click()
    tab.until("document.getElementById('timeline-head').perfscope.selected")
    base, head = tab.page.evaluate(SIDES)
    assert head["selected"] == EXTRA
    assert head["find"] == f"^({EXTRA})$"
    assert base["view"] == head["view"]
    assert tab.page.url.startswith(f"{pair_server.base}compare")
    assert tab.wrong == []


def test_an_ab_has_the_timelines_of_the_launches_it_profiled(tab: Tab, pair_server: Server) -> None:
    keys = _pair_keys(tab, pair_server)
    assert not any("-base-" in key for key in keys)  # they are not listed as runs
    tab.open(f"{pair_server.base}compare", "#compare-stored")
    tab.page.click("#compare-stored")
    tab.page.click("[role=option]:visible:has-text('ab-20260101-main')")
    tab.page.wait_for_selector(".verdict", timeout=60_000)
    tab.page.click("text=step in parts, timelines")
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
