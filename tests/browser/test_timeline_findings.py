"""Findings on the timeline: marks on the clock of their rank, a click tells and opens them, and the way back."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Server, Tab, serving
from tests.browser.test_timeline import READY

CLOCK_US = 1_700_000_000_000_000
"""Of the recorded clocks: of the size of real ones."""
LATE_US = {0: 2_000, 1: 3_000}
AHEAD_US = 700
"""The second rank's recording begins so much later."""
RULE = "launch-bound"

MARK = """() => {
  const one = document.querySelector('.ps-timeline').perfscope;
  return { area: one.area && { t0: one.area.t0, t1: one.area.t1, rank: one.area.trace && one.area.trace.rank },
           chosen: one.chosen && one.chosen.one.finding.rule, view: one.view,
           rows: one.rows.filter((row) => row.kind === 'finding')
             .map((row) => [row.trace.rank, row.one.finding.rule, row.label[0]]) };
}"""


def _trace(path: Path, rank: int) -> Path:
    """Two kernels, and between them nothing for milliseconds while the host does something else."""
    begin = CLOCK_US + AHEAD_US * rank

    def event(kind: str, name: str, process: int, thread: int, start: float, length: float, **args: Any) -> Any:
        at = {"ph": "X", "cat": kind, "name": name, "pid": process, "tid": thread, "ts": begin + start, "dur": length}
        return {**at, "args": args}

    events = [event("user_annotation", "ProfilerStep#1", 1, 1, 0, 5_000 + LATE_US[rank])]
    for number, start in ((1, 10), (2, 1_000 + LATE_US[rank])):
        events += [
            event("cpu_op", "aten::mm", 1, 1, start - 5, 8, **{"External id": number}),
            event("cuda_runtime", "cudaLaunchKernel", 1, 1, start - 3, 2, correlation=number),
            event("kernel", "gemm", 0, 7, start, 1_000 - start if number == 1 else 3_000, correlation=number,
                  device=0, stream=7, **{"External id": number}),
        ]  # fmt: skip
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 2},
        "traceEvents": events,
    }
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("found")
    ranks = home / "ranks"
    ranks.mkdir()
    for rank in LATE_US:
        _trace(ranks / f"rank{rank}.json.gz", rank)
    with serving(home, ranks) as held:
        yield held


def _open(tab: Tab, server: Server, page: str, ready: str) -> None:
    tab.open(f"{server.base}{page}?token={server.token}", ready)


def _gap(rank: int) -> tuple[float, float]:
    """Where the device of a rank is idle, in ns from the beginning of the first rank's recording."""
    start = 1_000 * (1_000 + AHEAD_US * rank)
    return start, start + 1_000 * LATE_US[rank]


def test_each_rank_has_a_row_with_its_findings(tab: Tab, server: Server) -> None:
    _open(tab, server, "timeline", READY)
    rows = tab.page.evaluate(MARK)["rows"]
    assert {(rank, sign) for rank, rule, sign in rows if rule == RULE} == {(0, "▲"), (1, "▲")}
    assert tab.wrong == []


def test_a_click_tells_the_finding_and_opens_it(tab: Tab, server: Server) -> None:
    _open(tab, server, "timeline", READY)
    x, y = tab.page.evaluate(
        """([rule, ns]) => { const one = document.querySelector('.ps-timeline').perfscope;
        const found = one.rows.filter((each) => each.kind === 'finding' && each.trace.rank === 1);
        const row = found.find((each) => each.one.finding.rule === rule);
        const box = one.canvas.getBoundingClientRect();
        return [box.left + one.x(ns), box.top + row.y - one.scroll + window.perfscope_ui.draw.RULER + 8]; }""",
        [RULE, sum(_gap(1)) / 2],
    )
    colour = tab.page.evaluate(
        """([x, y]) => { const canvas = document.querySelector('.ps-tl-canvas'), box = canvas.getBoundingClientRect();
        const [at, below] = [x - box.left, y - box.top + 4].map((one) => one * window.devicePixelRatio);
        return [...canvas.getContext('2d').getImageData(at, below, 1, 1).data]; }""",
        [x, y],
    )
    assert colour[0] > colour[2] + 60, colour  # a severe one is red
    tab.page.mouse.click(x, y)
    tab.page.wait_for_selector(".ps-tl-panel h2")
    assert RULE in tab.page.inner_text(".ps-tl-panel h2")
    assert "3.00 ms, begins 1.70 ms behind the start" in tab.page.inner_text(".ps-tl-panel")
    found = tab.page.evaluate(MARK)
    assert (found["area"]["t0"], found["area"]["t1"], found["area"]["rank"]) == (*_gap(1), 1)
    tab.page.click("text=open the finding")
    tab.page.wait_for_selector(".ps-finding details[open]")
    assert len(tab.page.query_selector_all(".ps-finding")) == 1
    assert RULE in tab.page.inner_text(".ps-finding")
    assert tab.wrong == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_finding_leads_to_exactly_its_piece_on_its_rank(tab: Tab, server: Server, rank: int) -> None:
    _open(tab, server, "findings", ".ps-finding")
    tab.page.click(f".ps-finding:has-text('{RULE}') >> a:has-text('of rank {rank}')")
    tab.page.wait_for_selector(READY)
    tab.until(f"document.querySelector('.ps-timeline').perfscope.chosen?.one.finding.rule === '{RULE}'")
    found = tab.page.evaluate(MARK)
    assert (found["area"]["t0"], found["area"]["t1"], found["area"]["rank"]) == (*_gap(rank), rank)
    assert found["view"]["t0"] < _gap(rank)[0] < _gap(rank)[1] < found["view"]["t1"]
    tab.until("location.search.includes('mark=') && location.search.includes('t0=')")
    tab.open(tab.page.url, READY)  # the address brings it back
    tab.until(f"document.querySelector('.ps-timeline').perfscope.chosen?.one.finding.rule === '{RULE}'")
    assert tab.page.evaluate(MARK)["area"] == found["area"]
    tab.page.click("text=what runs in it")
    tab.page.wait_for_selector(".ps-tl-panel tbody tr")
    assert f"of rank {rank}" in tab.page.inner_text(".ps-tl-panel h2")
    assert tab.wrong == []


def test_keys_walk_between_lanes_and_findings(tab: Tab, server: Server) -> None:
    _open(tab, server, "timeline", READY)
    tab.page.focus(".ps-tl-canvas")
    said: list[str] = []
    status = "document.querySelector('.ps-tl-status').textContent"
    for key, word in (
        ("ArrowDown", "ProfilerStep#1"),
        ("ArrowDown", "finding"),
        ("ArrowUp", "ProfilerStep#1"),
        ("ArrowDown", "finding"),
    ):
        tab.page.keyboard.press(key)
        tab.until(f"{status}.includes('{word}')")
        said.append(tab.page.evaluate(status))
    assert "rank 0" in said[0]
    assert "steps" in said[0]
    tab.page.keyboard.press("ArrowDown")
    tab.until(f"!{status}.includes('{RULE}') && {status} !== '{said[-1]}'")
    for _ in range(8):
        if "stream 7" in tab.page.evaluate(status):
            break
        before = tab.page.evaluate(status)
        tab.page.keyboard.press("ArrowDown")
        tab.until(f"{status} !== {json.dumps(before)}")
    assert tab.page.evaluate(status).startswith("gemm")
    starts = "document.querySelector('.ps-timeline').perfscope.selected.start"
    tab.page.keyboard.press("Home")
    tab.until(f"{starts} === '{(CLOCK_US + 10) * 1000}'")
    tab.page.keyboard.press("End")
    tab.until(f"{starts} === '{(CLOCK_US + 1_000 + LATE_US[0]) * 1000}'")
    tab.page.keyboard.press("t")
    tab.page.wait_for_selector(".ps-tl-panel tr[aria-current]")
    assert "gemm" in tab.page.inner_text(".ps-tl-panel tr[aria-current]")
    tab.page.keyboard.press("?")
    assert "the lane above or below" in tab.page.inner_text(".ps-tl-panel")
    assert tab.wrong == []


def test_enter_opens_the_finding_that_is_selected(tab: Tab, server: Server) -> None:
    _open(tab, server, "timeline", READY)
    tab.page.focus(".ps-tl-canvas")
    tab.page.keyboard.press("ArrowDown")
    tab.until("document.querySelector('.ps-timeline').perfscope.selected")
    tab.page.keyboard.press("ArrowDown")
    tab.until("document.querySelector('.ps-timeline').perfscope.chosen")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".ps-finding details[open]")
    assert tab.wrong == []
