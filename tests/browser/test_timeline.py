"""The timeline in a browser: it draws, moves, selects, finds, and its address brings the same picture back."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import PATIENCE_MS, Server, Tab, serving
from tests.browser.kineto import Kineto, ops
from tests.conftest import REPOSITORY

pytestmark = pytest.mark.slow

CLICKS = 20
READY = '.ps-timeline[data-ready="1"]'
HOSTILE = "<img src=x onerror=alert(1)> {{7*7}} [x](javascript:alert(1)) =cmd|' /C calc'!A0"


def _trace(path: Path) -> Path:
    made = Kineto()
    made.add("user_annotation", "ProfilerStep#1", 1, 0, 1000)
    for at in range(40):
        kernel = "sgemm_128x128" if at % 4 else HOSTILE
        made.launched("aten::mm", kernel, 20 * at, 11, at + 1, delay=8, host=12)
    return made.write(path)


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
    assert _near(op, matrix)  # the op that launches a product looks like the kernel that computes it
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


def test_the_keys_zoom_move_fit_let_go_and_walk(tab: Tab, server: Server) -> None:
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
    _click_lane(tab, "stream 7", 33_000)
    for key, start in (("ArrowRight", "48.0 us"), ("ArrowLeft", "28.0 us"), ("ArrowLeft", "8.00 us")):
        tab.page.keyboard.press(key)
        facts = "document.querySelector('.ps-tl-facts').innerText"
        tab.until(f"{facts}.split('\\n').includes('{start} after the start')")


def test_search_counts_and_jumps(tab: Tab, server: Server) -> None:
    _open(tab, server)
    tab.page.keyboard.press("/")
    tab.page.keyboard.type("sgemm_\\d+x")
    tab.until("document.querySelector('.ps-tl-status').textContent.startsWith('30 events, 330 us')")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_selector(".ps-tl-panel h2")
    assert tab.page.inner_text(".ps-tl-panel h2") == "sgemm_128x128"
    for key, place in (("n", "2 of 30"), ("n", "3 of 30"), ("N", "2 of 30")):
        tab.page.keyboard.press(key)
        tab.until(f"document.querySelector('.ps-tl-status').textContent.includes('{place} ')")
    tab.page.fill(".ps-tl-find", "(unclosed")
    tab.until("document.querySelector('.ps-tl-status').textContent === 'not a regular expression'")
    assert tab.wrong == []


WRITTEN = """(() => {
  const one = document.querySelector('.ps-timeline').perfscope, at = new URLSearchParams(location.search);
  return at.has('sel') && ['t0', 't1'].every((end) => Number(at.get(end)) === Math.round(one.view[end]));
})()"""
"""The address has the selection and the current view, shortly after the last change."""


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


FORMULA = "=cmd|' /C calc'!A0, \"quoted\""


@pytest.fixture(scope="module")
def files_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("files")
    ops(home / "one.json", FORMULA, "aten::mm", "aten::mm", length=40)
    with serving(home, home / "one.json") as held:
        yield held


def _save(tab: Tab, files_server: Server, button: str) -> bytes:
    tab.open(f"{files_server.base}timeline?token={files_server.token}", '.ps-timeline[data-ready="1"]')
    with tab.page.expect_download(timeout=PATIENCE_MS) as got:
        tab.page.click(f".ps-tl-bar button:text-is('{button}')")
    assert got.value.suggested_filename == f"timeline.{button.lower()}"
    assert tab.wrong == []
    return Path(got.value.path()).read_bytes()


def test_the_table_as_csv(tab: Tab, files_server: Server) -> None:
    head, *rows = csv.reader(_save(tab, files_server, "CSV").decode("utf-8").splitlines())
    table = [dict(zip(head, row, strict=True)) for row in rows]
    assert head[:5] == ["time_ns", "share", "own_ns", "events", "mean_ns"]
    found = {row["name"]: (int(row["time_ns"]), int(row["events"]), float(row["mean_ns"])) for row in table}
    assert found == {"aten::mm": (80_000, 2, 40_000.0), f"'{FORMULA}": (40_000, 1, 40_000.0)}


def test_the_picture_as_png(tab: Tab, files_server: Server) -> None:
    picture = _save(tab, files_server, "PNG")
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", picture[16:24])
    assert [width, height] == tab.page.evaluate(
        "(() => { const one = document.querySelector('.ps-tl-canvas'); return [one.width, one.height] })()"
    )
    # Nothing of it is transparent, whatever the viewer puts below it.
    clear = """async (bytes) => {
      const picture = await createImageBitmap(new Blob([new Uint8Array(bytes)], { type: "image/png" }));
      const canvas = new OffscreenCanvas(picture.width, picture.height), on = canvas.getContext("2d");
      on.drawImage(picture, 0, 0);
      const data = on.getImageData(0, 0, picture.width, picture.height).data, seen = new Set();
      let clear = 0;
      for (let at = 0; at < data.length; at += 4) {
        if (data[at + 3] < 255) clear += 1;
        seen.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
      }
      return [clear, seen.size];
    }"""
    transparent, colours = tab.page.evaluate(clear, list(picture))
    assert transparent == 0
    assert colours > 5


CLOCK_US = 1_700_000_000_000_000
"""Start of the recorded clocks, as large as real ones."""
LATE_US = {0: 2_000, 1: 3_000}
AHEAD_US = 700
"""The second rank's recording begins so much later."""
RULE = "host_bound"

MARK = """() => {
  const one = document.querySelector('.ps-timeline').perfscope;
  return { area: one.area && { t0: one.area.t0, t1: one.area.t1, rank: one.area.trace && one.area.trace.rank },
           chosen: one.chosen && one.chosen.one.finding.rule, view: one.view,
           rows: one.rows.filter((row) => row.kind === 'finding')
             .map((row) => [row.trace.rank, row.one.finding.rule, row.label[0]]) };
}"""


def _rank_trace(path: Path, rank: int) -> Path:
    """Two kernels, and between them nothing for milliseconds while the host does something else."""
    begin, made = CLOCK_US + AHEAD_US * rank, Kineto()
    made.add("user_annotation", "ProfilerStep#1", 1, begin, 5_000 + LATE_US[rank])
    for number, start, length in ((1, 10, 990), (2, 1_000 + LATE_US[rank], 3_000)):
        made.launched("aten::mm", "gemm", begin + start - 5, length, number, delay=5, host=8)
    return made.write(path, rank=rank)


@pytest.fixture(scope="module")
def findings_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("found")
    ranks = home / "ranks"
    ranks.mkdir()
    for rank in LATE_US:
        _rank_trace(ranks / f"rank{rank}.json.gz", rank)
    with serving(home, ranks) as held:
        yield held


def _open_page(tab: Tab, findings_server: Server, page: str, ready: str) -> None:
    tab.open(f"{findings_server.base}{page}?token={findings_server.token}", ready)


def _gap(rank: int) -> tuple[float, float]:
    """From when a rank's device is idle until its host begins the next op, in ns from the first rank's beginning."""
    start = 1_000 * (1_000 + AHEAD_US * rank)
    return start, start + 1_000 * (LATE_US[rank] - 5)


def test_a_click_tells_the_finding_and_opens_it(tab: Tab, findings_server: Server) -> None:
    _open_page(tab, findings_server, "timeline", READY)
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
    assert "3.00 ms, begins 1.70 ms after the start" in tab.page.inner_text(".ps-tl-panel")
    found = tab.page.evaluate(MARK)
    assert (found["area"]["t0"], found["area"]["t1"], found["area"]["rank"]) == (*_gap(1), 1)
    tab.page.click("text=open the finding")
    tab.page.wait_for_selector(".ps-finding details[open]")
    assert len(tab.page.query_selector_all(".ps-finding")) == 1
    assert RULE in tab.page.inner_text(".ps-finding")
    assert tab.wrong == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_finding_leads_to_exactly_its_piece_on_its_rank(tab: Tab, findings_server: Server, rank: int) -> None:
    _open_page(tab, findings_server, "findings", ".ps-finding")
    tab.page.click(f".ps-finding:has-text('{RULE}') >> a[title*='of rank {rank}']")
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


def test_keys_walk_between_lanes_and_findings(tab: Tab, findings_server: Server) -> None:
    _open_page(tab, findings_server, "timeline", READY)
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


def test_three_clicks_lead_from_the_step_to_the_fix_and_to_what_runs(tab: Tab, tmp_path: Path) -> None:
    with serving(tmp_path, REPOSITORY / "fixtures" / "cpu-attention-naive") as server:
        _open_page(tab, server, "overview", ".ps-first a")
        tab.page.click(".ps-first a")  # to the finding: its line, and what to do
        tab.page.wait_for_selector(".ps-finding details[open]")
        words = tab.page.inner_text(".ps-finding")
        assert "attention.py:36" in words
        assert "scaled_dot_product_attention" in words
        tab.page.click(".ps-look a[href*='mark=']")  # to its longest piece
        tab.page.wait_for_selector(READY)
        tab.until(CHOSEN)
        found = tab.page.evaluate(CHOSEN)
        assert (found["rule"], found["how"]) == ("unfused_attention", "piece")
        piece, view = found["area"]["t1"] - found["area"]["t0"], found["view"]["t1"] - found["view"]["t0"]
        assert 0.2 < piece / view < 0.9  # with what is around it
        assert set(tab.page.evaluate(SUMS)) & {"aten::div", "aten::masked_fill", "aten::_softmax", "aten::softmax",
                                               "aten::_softmax_backward_data"}  # fmt: skip
        tab.page.click("text=what runs in it")
        tab.page.wait_for_selector(".ps-tl-panel tbody tr")
        assert tab.wrong == []


ROWS = "document.querySelector('.ps-timeline').perfscope.rows.map((row) => `${row.sign || ''}${row.label}`)"


def _click_name(tab: Tab, label: str, *, right: bool = False) -> None:
    """Click on the name of a row, or (``right``) on its star."""
    script = """([label, right]) => {
      const one = document.querySelector('.ps-timeline').perfscope, draw = window.perfscope_ui.draw;
      const row = one.rows.find((each) => each.label.startsWith(label));
      const box = one.canvas.getBoundingClientRect();
      return [box.left + (right ? draw.GUTTER - 10 : 40), box.top + one.top(row) + 8];
    }"""
    tab.page.mouse.click(*tab.page.evaluate(script, [label, right]))


def test_devices_and_threads_fold_with_a_sign(tab: Tab, server: Server) -> None:
    _open(tab, server)
    rows = tab.page.evaluate(ROWS)
    assert "▾NVIDIA H100 80GB HBM3 (0)" in rows
    assert "▾thread 1" in rows
    _click_name(tab, "NVIDIA")
    assert "▸NVIDIA H100 80GB HBM3 (0)" in tab.page.evaluate(ROWS)
    assert "stream 7" not in tab.page.evaluate(ROWS)
    before = len(tab.page.evaluate(ROWS))
    _click_name(tab, "thread 1")
    folded = tab.page.evaluate(ROWS)
    assert "▸thread 1" in folded
    assert len(folded) < before
    tab.page.evaluate("document.querySelector('.ps-timeline').perfscope.search_text('sgemm_128x128')")
    tab.until("Boolean(document.querySelector('.ps-timeline').perfscope.matches)")
    tab.page.evaluate("document.querySelector('.ps-timeline').perfscope.jump(1)")
    tab.until("document.querySelector('.ps-timeline').perfscope.selected")
    assert "stream 7" in tab.page.evaluate(ROWS)  # what is gone to is opened
    assert tab.wrong == []


def test_a_pinned_line_stays_at_the_top_and_in_the_address(tab: Tab, server: Server) -> None:
    _open(tab, server)
    _click_name(tab, "stream 7", right=True)
    assert tab.page.evaluate(ROWS)[:2] == ["pinned", "stream 7"]
    tab.until("location.search.includes('pins=')")
    tab.page.reload()
    tab.page.wait_for_selector(READY)
    assert tab.page.evaluate(ROWS)[:2] == ["pinned", "stream 7"]
    _click_lane(tab, "stream 7", 28_000)
    assert tab.page.evaluate("document.querySelector('.ps-timeline').perfscope.selected.table") == "kernels"
    tab.page.keyboard.press("p")
    assert tab.page.evaluate(ROWS)[0] == "steps"
    assert tab.wrong == []


def test_a_piece_is_summed_by_name_category_and_module_and_names_stay_text(tab: Tab, server: Server) -> None:
    _open(tab, server)
    _click_lane(tab, "stream 7", 13_000)
    assert tab.page.inner_text(".ps-tl-whole") == HOSTILE
    tab.page.keyboard.press("t")
    tab.page.wait_for_selector(".ps-tl-panel tbody tr")
    assert tab.page.query_selector(".ps-tl-panel img") is None
    rows = tab.page.eval_on_selector_all(".ps-tl-panel tbody tr", "(rows) => rows.map((row) => row.innerText)")
    kernels = next(row for row in rows if "sgemm_128x128" in row)
    assert "330 us" in kernels
    assert "\t30\t" in kernels
    tab.page.click("text=by category")
    tab.until("document.querySelector('.ps-tl-panel thead').innerText.includes('category')")
    sums = tab.page.inner_text(".ps-tl-panel table")
    assert "matrix product" in sums
    assert "sgemm_128x128" not in sums
    assert tab.page.get_attribute("text=by category", "aria-pressed") == "true"
    tab.page.click("text=by module")
    tab.until("document.querySelector('.ps-tl-panel thead').innerText.includes('module')")
    assert "(not known)" in tab.page.inner_text(".ps-tl-panel table")
    assert tab.wrong == []


def test_a_launch_and_a_forward_op_are_joined_by_arrows(tab: Tab, tmp_path: Path) -> None:
    made = Kineto()
    ahead = {"Sequence number": 5, "Fwd thread id": 0}
    made.add("cpu_op", "aten::addmm", 1, 0, 100, **ahead)
    made.add("cpu_op", "AddmmBackward0", 2, 300, 100, **{"Sequence number": 5, "Fwd thread id": 1})
    made.launched("aten::mm", "sgemm", 500, 50, 9)
    with serving(tmp_path, made.write(tmp_path / "pair.json")) as server:
        _open(tab, server, "&find=^AddmmBackward0$")
        tab.page.keyboard.press("n")
        tab.page.wait_for_selector(".ps-tl-panel h2")
        flows = tab.page.evaluate(
            """() => { const one = document.querySelector('.ps-timeline').perfscope;
            return one.flows(one.selected).map((flow) => [flow.kind, flow.event.text]); }"""
        )
        assert flows == [["forward", "aten::addmm"]]
        tab.page.click("text=aten::addmm")  # of the panel: to the forward op
        tab.until("document.querySelector('.ps-tl-panel h2').innerText === 'aten::addmm'")
        assert "backward op" in tab.page.inner_text(".ps-tl-panel")
        assert tab.wrong == []
