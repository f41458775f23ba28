"""The roofline in a browser: discs and roofs, the slider, a disc that is chosen, names of strangers as text."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.browser.conftest import Server, Tab, serving_program
from tests.hlo_build import GPU

READY = '.ps-roofs[data-ready="1"]'
HOSTILE = "<img src=x onerror=alert(1)>"

_SHAPE = "bf16[4096,4096]{1,0}"
_TOLD = f'metadata={{op_name="jit(step)/{HOSTILE}" source_file="{HOSTILE}.py" source_line=7}}'
_LAST = 'metadata={op_name="jit(step)/neg" source_file="train.py" source_line=9}'
PROGRAM = f"""HloModule jit_step, is_scheduled=true

ENTRY main {{
  a = {_SHAPE} parameter(0)
  dot = {_SHAPE} dot(a, a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {_TOLD}, {GPU}
  copy = {_SHAPE} copy(dot), {GPU}
  ROOT neg = {_SHAPE} negate(copy), {_LAST}, {GPU}
}}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_program(tmp_path_factory.mktemp("roofline"), PROGRAM) as held:
        yield held


def _open(tab: Tab, server: Server, query: str = "") -> None:
    tab.open(f"{server.base}roofline?token={server.token}{query}", READY)


def test_points_roofs_and_their_source(tab: Tab, server: Server) -> None:
    _open(tab, server)
    assert len(tab.page.query_selector_all(".ps-disc")) == 2  # the copy has no FLOPs
    words = tab.page.inner_text("#page")
    assert "H100 SXM (assumed" in words
    assert "white paper" in words
    assert "No time was measured" in words
    assert "memory 3.35 TB/s" in tab.page.inner_html(".ps-roof")
    tab.until("document.querySelectorAll('.ag-center-cols-container .ag-row').length === 3")
    assert tab.wrong == []
    assert tab.went_away() == []


def test_a_disc_tells_its_line_and_leads_to_the_timeline(tab: Tab, server: Server) -> None:
    _open(tab, server)
    tab.page.locator('.ps-disc[aria-label^="dot"]').focus()
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".ps-tl-panel h2")
    assert tab.page.inner_text(".ps-tl-panel h2") == "dot"
    assert f"{HOSTILE}.py:7" in tab.page.inner_text(".ps-tl-panel")
    assert tab.page.query_selector("#page img") is None
    href = tab.page.get_attribute(".ps-tl-panel a >> nth=0", "href")
    assert href is not None
    assert re.search(r"/timeline\?.*find=%5Edot%24", href)
    tab.until("location.search.includes('sel=dot')")
    tab.open(tab.page.url, READY)
    assert tab.page.inner_text(".ps-tl-panel h2") == "dot"
    assert tab.wrong == []


def test_the_slider_keeps_what_takes_longest(tab: Tab, server: Server) -> None:
    _open(tab, server, "&most=1")
    assert len(tab.page.query_selector_all(".ps-disc")) == 1
    assert "1% of the time" in tab.page.inner_text(".ps-tl-bar")
    tab.page.locator(".ps-range").evaluate(
        "(one) => { one.value = '100'; one.dispatchEvent(new Event('input', { bubbles: true })) }"
    )
    tab.until("document.querySelectorAll('.ps-disc').length === 2")
    assert "most=" not in tab.page.url
    assert tab.wrong == []


APART = """(() => {
  const word = [...document.querySelectorAll('.ps-roof text')].find((one) => one.textContent.startsWith('memory '));
  const box = word.getBoundingClientRect();
  return [...document.querySelectorAll('.ps-disc')].every((one) => {
    const disc = one.getBoundingClientRect();
    const [x, y] = [(disc.left + disc.right) / 2, (disc.top + disc.bottom) / 2];
    return x < box.left || x > box.right || y < box.top || y > box.bottom;
  });
})()"""
IN_SIGHT = """(() => {
  const room = document.querySelector('.ag-root-wrapper')?.getBoundingClientRect().right;
  return [...document.querySelectorAll('.ag-header-cell')]
      .filter((one) => one.getBoundingClientRect().right <= room + 1).map((one) => one.textContent.trim());
})()"""
"""Titles of the columns that are seen whole without scrolling."""


def test_it_stays_readable_when_narrow_and_dark(tab: Tab, server: Server) -> None:
    tab.page.set_viewport_size({"width": 820, "height": 900})
    _open(tab, server)
    tab.page.click(".mantine-Switch-track")
    tab.until("document.documentElement.dataset.psScheme === 'dark'")
    ink = "getComputedStyle(document.querySelector('.ps-roofline')).stroke"
    tab.until(f"{ink} === getComputedStyle(document.querySelector('h1')).color")
    assert tab.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.page.evaluate(APART)
    absent = tab.page.inner_text(".ps-absent")
    assert "beyond the roof · of the roof" in absent  # nothing was measured: the columns make room, and it is said
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.until(f"{IN_SIGHT}.includes('time')")
    assert tab.page.evaluate(IN_SIGHT)[:2] == ["name", "time"]
    tab.page.set_viewport_size({"width": 820, "height": 900})
    tab.until(f"{IN_SIGHT}.includes('time is')")
    assert tab.wrong == []
