"""The graph in a browser: what stands around a finding, an instruction that is chosen, a search, text to copy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import Server, Tab, serving, serving_program
from tests.conftest import REPOSITORY
from tests.hlo_build import GPU

READY = '.ps-graph[data-ready="1"]'
HOSTILE = "<img src=x onerror=alert(1)>"
_SHAPE = "f32[4096,4096]{1,0}"
_TOLD = f'metadata={{op_name="jit(step)/{HOSTILE}" source_file="{HOSTILE}.py" source_line=7}}'
PROGRAM = f"""HloModule jit_step, is_scheduled=true

first {{
  p = {_SHAPE} parameter(0)
  e = {_SHAPE} exponential(p), {_TOLD}
  ROOT m = {_SHAPE} multiply(e, p)
}}

second {{
  q = {_SHAPE} parameter(0)
  ROOT n = {_SHAPE} negate(q)
}}

ENTRY main {{
  a = {_SHAPE} parameter(0)
  one = {_SHAPE} fusion(a), kind=kLoop, calls=first, {_TOLD}, {GPU}
  two = {_SHAPE} fusion(one), kind=kLoop, calls=second, {GPU}
  ROOT turned = {_SHAPE} transpose(two), dimensions={{1,0}}, {GPU}
}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_program(tmp_path_factory.mktemp("graph"), PROGRAM) as held:
        yield held


def _open(tab: Tab, server: Server, query: str = "") -> None:
    tab.open(f"{server.base}graph?token={server.token}{query}", READY)


def test_a_finding_is_drawn_with_boxes_and_bytes(tab: Tab, server: Server) -> None:
    _open(tab, server)
    assert tab.page.eval_on_selector_all(".ps-box-name", "(all) => all.map((one) => one.textContent)") == ["one", "two"]
    assert "64 MiB" in tab.page.eval_on_selector_all(".ps-saved-said", "(all) => all.map((one) => one.textContent)")[0]
    assert "unfused-ops" in tab.page.inner_text("#page")
    tab.until("document.querySelectorAll('.ag-center-cols-container .ag-row').length === 5")
    assert tab.wrong == []
    assert tab.went_away() == []


def test_an_instruction_tells_its_text_and_its_neighbours(tab: Tab, server: Server) -> None:
    _open(tab, server)
    tab.page.locator('.ps-node[aria-label^="e, exponential"]').focus()
    tab.page.keyboard.press("Enter")
    tab.until("document.querySelector('.ps-tl-panel h2').textContent === 'e'")
    panel = tab.page.inner_text(".ps-tl-panel")
    assert "e = f32[4096,4096] exponential(p)" in panel
    assert f"{HOSTILE}.py:7" in panel
    assert tab.page.query_selector("#page img") is None
    tab.page.click(".ps-spelled .copy")
    tab.until("/copied|selected/.test(document.querySelector('.ps-spelled .copy').textContent)")
    tab.page.click(".ps-around .ps-link >> nth=0")
    tab.until("document.querySelector('.ps-tl-panel h2').textContent === 'a'")
    assert "sel=a" in tab.page.url
    assert tab.wrong == []


def test_a_search_finds_the_picture_of_an_instruction(tab: Tab, server: Server) -> None:
    _open(tab, server)
    every = len(tab.page.query_selector_all(".ps-subjects li"))
    tab.page.fill("#graph-find", "turned")
    tab.page.press("#graph-find", "Enter")
    tab.page.wait_for_url("**/graph?*find=turned*")
    tab.page.wait_for_selector(READY)
    assert 0 < len(tab.page.query_selector_all(".ps-subjects li")) <= every
    assert tab.page.inner_text(".ps-tl-panel h2") == "turned"
    _open(tab, server, "&find=%5Etwo%24")
    assert "two" in tab.page.inner_text(".ps-subjects .ps-here")
    _open(tab, server, "&find=nowhere&picture=9")
    assert "Nothing that is drawn is called nowhere" in tab.page.inner_text("#page")
    assert tab.wrong == []


def test_it_stays_within_the_page_when_narrow_and_dark(tab: Tab, server: Server) -> None:
    tab.page.set_viewport_size({"width": 820, "height": 900})
    _open(tab, server)
    tab.page.click(".mantine-Switch-track")
    tab.until("document.documentElement.dataset.psScheme === 'dark'")
    ink = "getComputedStyle(document.querySelector('.ps-node-name')).fill"
    tab.until(f"{ink} === getComputedStyle(document.querySelector('h1')).color")
    assert tab.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.wrong == []


def test_labels_lie_on_nothing(tab: Tab, tmp_path: Path) -> None:
    """A plan whose values skip layers: no label stands on a node, on the words of a box or on another label."""
    plan = REPOSITORY / "fixtures" / "plans-h100" / "attention-naive"
    with serving(tmp_path, plan) as server:
        _open(tab, server)
        for number in (1, 2, 3, 4):
            tab.open(f"{server.base}graph?picture={number}", READY)
            labels, others = tab.page.evaluate(
                """() => { const boxes = (what) => [...document.querySelectorAll(what)].map((one) => {
                const box = one.getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom]; });
                return [boxes('.ps-edge-said'), boxes('.ps-node rect, .ps-box-name, .ps-box-said')]; }"""
            )
            assert labels, number
            for at, one in enumerate(labels):
                for other in (*labels[at + 1 :], *others):
                    apart = one[0] >= other[2] or other[0] >= one[2] or one[1] >= other[3] or other[1] >= one[3]
                    overlap = min(one[3], other[3]) - max(one[1], other[1])
                    assert apart or overlap < 3, (number, one, other)  # a line of text is higher than its letters
    assert tab.wrong == []
