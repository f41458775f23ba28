"""The graph in a browser: neighbours of a finding, a chosen instruction, a search, text to copy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import Server, Tab, serving, serving_program
from tests.conftest import REPOSITORY
from tests.hlo_build import GPU

GRAPH_READY = '.ps-graph[data-ready="1"]'
HOSTILE = "<img src=x onerror=alert(1)>"
_GRAPH_SHAPE = "f32[4096,4096]{1,0}"
_TOLD = f'metadata={{op_name="jit(step)/{HOSTILE}" source_file="{HOSTILE}.py" source_line=7}}'
GRAPH_PROGRAM = f"""HloModule jit_step, is_scheduled=true

first {{
  p = {_GRAPH_SHAPE} parameter(0)
  e = {_GRAPH_SHAPE} exponential(p), {_TOLD}
  ROOT m = {_GRAPH_SHAPE} multiply(e, p)
}}

second {{
  q = {_GRAPH_SHAPE} parameter(0)
  ROOT n = {_GRAPH_SHAPE} negate(q)
}}

ENTRY main {{
  a = {_GRAPH_SHAPE} parameter(0)
  one = {_GRAPH_SHAPE} fusion(a), kind=kLoop, calls=first, {_TOLD}, {GPU}
  two = {_GRAPH_SHAPE} fusion(one), kind=kLoop, calls=second, {GPU}
  ROOT turned = {_GRAPH_SHAPE} transpose(two), dimensions={{1,0}}, {GPU}
}}
"""


@pytest.fixture(scope="module")
def graph_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_program(tmp_path_factory.mktemp("graph"), GRAPH_PROGRAM) as held:
        yield held


def _open_graph(tab: Tab, graph_server: Server, query: str = "") -> None:
    tab.open(f"{graph_server.base}graph?token={graph_server.token}{query}", GRAPH_READY)


def _open_fusion(tab: Tab, graph_server: Server) -> None:
    """Show the picture of the kernels that could be one."""
    _open_graph(tab, graph_server)
    tab.page.click("text=one to two, jit_step")
    tab.until("[...document.querySelectorAll('.ps-box-name')].map((one) => one.textContent).join() === 'one,two'")


@pytest.mark.slow
def test_a_finding_is_drawn_with_boxes_and_bytes(tab: Tab, graph_server: Server) -> None:
    _open_fusion(tab, graph_server)
    assert tab.page.eval_on_selector_all(".ps-box-name", "(all) => all.map((one) => one.textContent)") == ["one", "two"]
    saved = tab.page.eval_on_selector_all(".ps-saved-said", "(all) => all.map((one) => one.textContent)")
    assert "64.0 MiB" in saved[0]
    assert "unfused_ops" in tab.page.inner_text("#page")
    tab.until("document.querySelectorAll('.ag-center-cols-container .ag-row').length === 5")
    assert tab.wrong == []
    assert tab.went_away() == []


@pytest.mark.slow
def test_an_instruction_tells_its_text_and_its_neighbours(tab: Tab, graph_server: Server) -> None:
    _open_fusion(tab, graph_server)
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


@pytest.mark.slow
def test_a_search_finds_the_picture_of_an_instruction(tab: Tab, graph_server: Server) -> None:
    _open_graph(tab, graph_server)
    every = len(tab.page.query_selector_all(".ps-subjects li"))
    tab.page.fill("#graph-find", "turned")
    tab.page.press("#graph-find", "Enter")
    tab.page.wait_for_url("**/graph?*find=turned*")
    tab.page.wait_for_selector(GRAPH_READY)
    assert 0 < len(tab.page.query_selector_all(".ps-subjects li")) <= every
    assert tab.page.inner_text(".ps-tl-panel h2") == "turned"
    _open_graph(tab, graph_server, "&find=%5Etwo%24")
    assert "two" in tab.page.inner_text(".ps-subjects .ps-here")
    _open_graph(tab, graph_server, "&find=nowhere&picture=9")
    assert "No drawn node is called nowhere" in tab.page.inner_text("#page")
    assert tab.wrong == []


@pytest.mark.slow
def test_labels_lie_on_nothing(tab: Tab, tmp_path: Path) -> None:
    """A plan whose values skip layers: labels overlap neither nodes nor box titles nor other labels."""
    plan = REPOSITORY / "fixtures" / "plans-h100" / "attention-naive"
    with serving(tmp_path, plan) as graph_server:
        _open_graph(tab, graph_server)
        for number in (1, 2, 3, 4):
            tab.open(f"{graph_server.base}graph?picture={number}", GRAPH_READY)
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


ROOFLINE_READY = ".ps-chart .main-svg .points path"

_ROOFLINE_SHAPE = "bf16[4096,4096]{1,0}"
_LAST = 'metadata={op_name="jit(step)/neg" source_file="train.py" source_line=9}'
ROOFLINE_PROGRAM = f"""HloModule jit_step, is_scheduled=true

ENTRY main {{
  a = {_ROOFLINE_SHAPE} parameter(0)
  dot = {_ROOFLINE_SHAPE} dot(a, a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {_TOLD}, {GPU}
  copy = {_ROOFLINE_SHAPE} copy(dot), {GPU}
  ROOT neg = {_ROOFLINE_SHAPE} negate(copy), {_LAST}, {GPU}
}}
"""


@pytest.fixture(scope="module")
def roofline_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_program(tmp_path_factory.mktemp("roofline"), ROOFLINE_PROGRAM) as held:
        yield held


def _open_roofline(tab: Tab, roofline_server: Server, query: str = "") -> None:
    tab.open(f"{roofline_server.base}roofline?token={roofline_server.token}{query}", ROOFLINE_READY)


@pytest.mark.slow
def test_points_roofs_and_their_source(tab: Tab, roofline_server: Server) -> None:
    _open_roofline(tab, roofline_server)
    assert len(tab.page.query_selector_all(".ps-chart .points path")) == 2  # the copy has no FLOPs
    words = tab.page.inner_text("#page")
    assert "H100 SXM (assumed" in words
    assert "white paper" in words
    assert "memory 3.35 TB/s" in words
    assert "No time was measured" in words
    assert "bf16, fp16 989 T" in tab.page.evaluate("document.querySelector('.ps-chart').textContent")
    tab.until("document.querySelectorAll('.ag-center-cols-container .ag-row').length === 3")
    assert tab.wrong == []
    assert tab.went_away() == []


@pytest.mark.slow
def test_a_disc_tells_its_line_and_leads_to_the_timeline(tab: Tab, roofline_server: Server) -> None:
    _open_roofline(tab, roofline_server)
    box = tab.page.query_selector(".ps-chart .points path").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    tab.page.mouse.move(*middle)
    tab.until("document.querySelector('.ps-chart .hoverlayer').textContent.includes('dot')")
    tab.page.mouse.click(*middle)
    tab.until("location.search.includes('at=dot')")
    tab.page.wait_for_selector("#roofline-point")
    assert f"{HOSTILE}.py:7" in tab.page.inner_text("#roofline-point")
    assert tab.page.query_selector("#page img") is None
    href = tab.page.get_attribute("#roofline-point a >> nth=0", "href")
    assert href is not None
    assert re.search(r"/timeline\?.*find=%5Edot%24", href)
    tab.open(tab.page.url, "#roofline-point")
    assert tab.wrong == []


IN_SIGHT = """(() => {
  const room = document.querySelector('.ag-root-wrapper')?.getBoundingClientRect().right;
  return [...document.querySelectorAll('.ag-header-cell')]
      .filter((one) => one.getBoundingClientRect().right <= room + 1).map((one) => one.textContent.trim());
})()"""
"""Titles of the columns that are seen whole without scrolling."""


@pytest.mark.slow
def test_it_stays_readable_when_narrow_and_dark(tab: Tab, roofline_server: Server) -> None:
    tab.page.set_viewport_size({"width": 820, "height": 900})
    _open_roofline(tab, roofline_server)
    tab.page.click(".mantine-Switch-track")
    tab.until("document.documentElement.dataset.psScheme === 'dark'")
    ink = "getComputedStyle(document.querySelector('.ps-chart .legendtext')).fill"
    tab.until(f"{ink} === getComputedStyle(document.querySelector('h1')).color")
    assert tab.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    absent = tab.page.inner_text(".ps-absent")
    assert "headroom · of roof" in absent  # nothing was measured: empty columns are hidden, with a note
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.until(f"{IN_SIGHT}.includes('time')")
    assert tab.page.evaluate(IN_SIGHT)[:2] == ["name", "time"]
    tab.page.set_viewport_size({"width": 820, "height": 900})
    tab.until(f"{IN_SIGHT}.includes('basis')")
    assert tab.wrong == []
