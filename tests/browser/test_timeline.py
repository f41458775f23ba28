"""The timeline in a browser: it draws, moves, selects, finds, and its address brings the same picture back."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Server, Tab, serving

CLICKS = 20
READY = '.ps-timeline[data-ready="1"]'
HOSTILE = "<img src=x onerror=alert(1)> {{7*7}} [x](javascript:alert(1)) =cmd|' /C calc'!A0"


def _trace(path: Path) -> Path:
    def event(kind: str, name: str, thread: int, start: int, length: int, **args: int) -> dict[str, Any]:
        process = 0 if kind == "kernel" else 1
        return {
            "ph": "X",
            "cat": kind,
            "name": name,
            "pid": process,
            "tid": thread,
            "ts": start,
            "dur": length,
            "args": args,
        }

    events = [event("user_annotation", "ProfilerStep#1", 1, 0, 1000)]
    for at in range(40):
        ids = {"correlation": at + 1, "External id": at + 1}
        kernel = "sgemm_128x128" if at % 4 else HOSTILE
        events += [
            event("cpu_op", "aten::mm", 1, 20 * at, 12, **{"External id": at + 1}),
            event("cuda_runtime", "cudaLaunchKernel", 1, 20 * at + 2, 3, **ids),
            event("kernel", kernel, 7, 20 * at + 8, 11, **ids, device=0, stream=7),
        ]
    document = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "traceEvents": events,
    }
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("timeline")
    with serving(home, _trace(home / "small.json.gz")) as held:
        yield held


def _open(tab: Tab, server: Server, query: str = "") -> None:
    tab.open(f"{server.base}timeline?token={server.token}{query}", READY)


def _view(tab: Tab) -> dict[str, float]:
    return tab.page.evaluate("document.querySelector('.ps-timeline').perfscope.view")  # type: ignore[no-any-return]


def _click_lane(tab: Tab, label: str, ns: float) -> None:
    """Click on the lane of that label (its first row) at a time."""
    script = """([label, ns]) => {
      const one = document.querySelector('.ps-timeline').perfscope;
      const row = one.rows.find((each) => each.label.startsWith(label));
      const box = one.canvas.getBoundingClientRect();
      return [box.left + one.x(ns), box.top + row.y - one.scroll + window.perfscope_ui.draw.RULER + 8];
    }"""
    for _ in range(CLICKS):  # the page may still be laying itself out
        x, y = tab.page.evaluate(script, [label, ns])
        tab.page.mouse.click(x, y)
        tab.until("!document.querySelector('.ps-timeline').perfscope.wanted")
        if tab.page.query_selector(".ps-tl-panel h2"):
            return
    raise AssertionError(f"{label}: nothing is selected at {ns} ns")


def test_it_draws_without_a_word_from_the_console(tab: Tab, server: Server) -> None:
    _open(tab, server)
    colours = tab.page.evaluate(
        """() => { const canvas = document.querySelector('.ps-tl-canvas');
        const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        const seen = new Set();
        for (let at = 0; at < data.length; at += 4) seen.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
        return seen.size }"""
    )
    assert colours > 20
    assert tab.wrong == []
    assert tab.went_away() == []


COLOURS_AT = """(places) => {
  const one = document.querySelector('.ps-timeline').perfscope, ratio = window.devicePixelRatio;
  const wide = one.canvas.width, held = one.canvas.getContext('2d').getImageData(0, 0, wide, one.canvas.height).data;
  return places.map(([label, below, ns]) => {
    const row = one.rows[one.rows.findIndex((each) => each.label.startsWith(label)) + below];
    const y = Math.round((row.y - one.scroll + window.perfscope_ui.draw.RULER + 2) * ratio);
    const at = 4 * (y * wide + Math.round(one.x(ns) * ratio));
    return [...held.slice(at, at + 3)];
  });
}"""
SWATCH = """(word) => {
  const one = [...document.querySelectorAll('.ps-tl-legend li')].find((each) => each.textContent === word);
  return getComputedStyle(one.querySelector('span')).backgroundColor.match(/\\d+/g).map(Number);
}"""


def _near(one: list[int], other: list[int]) -> bool:
    return all(abs(a - b) <= 45 for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_legend_tells_the_colours_of_devices_and_host(tab: Tab, server: Server, scheme: str) -> None:
    _open(tab, server, "&t0=0&t1=100000")
    if scheme == "dark":
        tab.page.focus("#dark")
        tab.page.keyboard.press("Space")
        tab.until("document.documentElement.dataset.psScheme === 'dark'")
    tab.page.wait_for_timeout(300)
    words = tab.page.eval_on_selector_all(".ps-tl-legend li", "(all) => all.map((one) => one.textContent)")
    assert {"matrix product", "step", "annotation", "launch"} < set(words)
    assert "attention" not in words  # there is none
    matrix, launch = tab.page.evaluate(SWATCH, "matrix product"), tab.page.evaluate(SWATCH, "launch")
    kernel, op = tab.page.evaluate(COLOURS_AT, [["stream 7", 0, 33_000], ["thread 1", 1, 21_000]])
    assert _near(kernel, matrix)
    assert _near(op, matrix)  # the op that asks for a product looks like the kernel that computes it
    assert not _near(launch, matrix)
    assert tab.wrong == []


def test_a_kernel_leads_to_its_launch_and_back(tab: Tab, server: Server) -> None:
    _open(tab, server)
    _click_lane(tab, "stream 7", 20_000 + 8_000 + 5_000)
    panel = tab.page.inner_text(".ps-tl-panel")
    assert "sgemm_128x128" in panel
    assert "11,000 ns" in panel
    assert "launched by" in panel
    tab.page.click(".ps-tl-panel .ps-link >> nth=0")
    tab.until("document.querySelector('.ps-tl-panel h2').textContent === 'cudaLaunchKernel'")
    assert "inside" in tab.page.inner_text(".ps-tl-panel")
    assert tab.wrong == []


def test_the_keys_zoom_move_fit_and_let_go(tab: Tab, server: Server) -> None:
    _open(tab, server)
    whole = _view(tab)
    tab.page.mouse.move(800, 300)
    for key in ("w", "w", "d"):
        tab.page.keyboard.press(key)
    near = _view(tab)
    assert near["t1"] - near["t0"] == pytest.approx(0.49 * (whole["t1"] - whole["t0"]), rel=1e-6)
    tab.page.keyboard.press("f")
    assert _view(tab) == whole
    tab.page.keyboard.press("?")
    assert "zoom in and out" in tab.page.inner_text(".ps-tl-panel")
    tab.page.keyboard.press("Escape")
    assert not tab.page.is_visible(".ps-tl-panel h2")


def test_arrows_walk_along_a_lane(tab: Tab, server: Server) -> None:
    _open(tab, server)
    _click_lane(tab, "stream 7", 33_000)
    for key, start in (("ArrowRight", "48.0 us"), ("ArrowLeft", "28.0 us"), ("ArrowLeft", "8.00 us")):
        tab.page.keyboard.press(key)
        facts = "document.querySelector('.ps-tl-facts').innerText"
        tab.until(f"{facts}.split('\\n').includes('{start} behind the start')")


def test_search_counts_and_jumps(tab: Tab, server: Server) -> None:
    _open(tab, server)
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("sgemm_\\d+x")
    tab.until("document.querySelector('.ps-tl-status').textContent.startsWith('30 events, 330 us')")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".ps-tl-panel h2")
    assert tab.page.inner_text(".ps-tl-panel h2") == "sgemm_128x128"
    tab.page.fill(".ps-tl-find", "(unclosed")
    tab.until("document.querySelector('.ps-tl-status').textContent === 'not a regular expression'")
    assert tab.wrong == []


def test_a_search_in_the_address_waits_for_the_names(tab: Tab, server: Server) -> None:
    tab.page.route("**/names?*", lambda route: (tab.page.wait_for_timeout(600), route.continue_()))
    _open(tab, server, "&find=sgemm")
    tab.until("document.querySelector('.ps-tl-status').textContent.startsWith('30 events, 330 us')")


def test_a_piece_is_summed_by_name(tab: Tab, server: Server) -> None:
    _open(tab, server)
    tab.page.keyboard.press("t")
    tab.page.wait_for_selector(".ps-tl-panel tbody tr")
    rows = tab.page.eval_on_selector_all(".ps-tl-panel tbody tr", "(rows) => rows.map((row) => row.innerText)")
    kernels = next(row for row in rows if "sgemm_128x128" in row)
    assert "330 us" in kernels
    assert "\t30\t" in kernels


def test_a_stranger_name_stays_text(tab: Tab, server: Server) -> None:
    _open(tab, server)
    _click_lane(tab, "stream 7", 13_000)
    assert tab.page.inner_text(".ps-tl-panel h2") == HOSTILE
    tab.page.keyboard.press("t")
    tab.page.wait_for_selector(".ps-tl-panel tbody tr")
    assert tab.page.query_selector(".ps-tl-panel img") is None
    assert tab.wrong == []


WRITTEN = """(() => {
  const one = document.querySelector('.ps-timeline').perfscope, at = new URLSearchParams(location.search);
  return at.has('sel') && ['t0', 't1'].every((end) => Number(at.get(end)) === Math.round(one.view[end]));
})()"""
"""The address says what is selected and the view as it is now: it is written a moment behind the last change."""


def test_the_address_brings_the_picture_back(tab: Tab, server: Server) -> None:
    _open(tab, server)
    whole = _view(tab)
    _click_lane(tab, "stream 7", 33_000)
    tab.page.mouse.move(800, 300)
    tab.page.keyboard.press("w")
    tab.until(WRITTEN)
    before, url = _view(tab), tab.page.url
    assert before["t1"] - before["t0"] == pytest.approx(0.7 * (whole["t1"] - whole["t0"]), rel=1e-6)
    assert "token" not in url
    tab.open(url, READY)
    tab.page.wait_for_selector(".ps-tl-panel h2")
    after = _view(tab)
    assert after["t0"] == pytest.approx(before["t0"], abs=1)
    assert after["t1"] == pytest.approx(before["t1"], abs=1)
    assert tab.page.inner_text(".ps-tl-panel h2") == "sgemm_128x128"
