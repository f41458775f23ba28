"""Pages of ranks, memory, compilations and the first one: charts answer to the pointer, links lead on."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfscope.dashboards.web.server.shelf import Shelf
from tests.browser.conftest import Server, Tab, serving
from tests.browser.kineto import Kineto
from tests.conftest import REPOSITORY, corpus_files

pytestmark = pytest.mark.slow

HOSTILE = "<img src=x onerror=alert(1)>"
CHART = ".ps-chart .nsewdrag"
HOVERED = "document.querySelector('.ps-chart .hoverlayer').textContent"


def _rank(path: Path, rank: int) -> Path:
    """A rank of two that waits at every second collective, with memory; times in us."""
    made = Kineto()
    made.add("user_annotation", "ProfilerStep#1", 1, 0, 9000)
    collective = {
        "device": rank, "stream": 20, "Collective name": "allreduce", "In msg nelems": 1000, "Group size": 2,
        "Out msg nelems": 1000, "dtype": "Float", "Process Group Name": "0", "Process Group Ranks": "[0, 1]",
    }  # fmt: skip
    for at in range(8):
        start, end = 1000 * at + (400 if at % 2 == rank else 0), 1000 * at + 700
        ids = {"correlation": at + 1, "External id": at + 1}
        made.add("cuda_runtime", "cudaLaunchKernel", 1, start - 5, 3, **ids)
        made.add("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 20, start, end - start, **ids, **collective)
        made.add("cpu_op", HOSTILE, 1, 1000 * at + 800, 90)
        _memory(made, 1000 * at + 810, 4096 * (at + 1), 7000 + at, 4096 * sum(range(1, at + 2)))
    _memory(made, 8500, -4096 * 8, 7007, 4096 * 28)
    return made.write(path, rank=rank)


def _memory(made: Kineto, at: float, size: int, address: int, total: int) -> None:
    args = {
        "Total Allocated": total, "Total Reserved": 2**20, "Bytes": size, "Addr": address, "Device Type": 1,
        "Device Id": 0,
    }  # fmt: skip
    event = {"ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "s": "t", "pid": 1, "tid": 1, "ts": at}
    made.events.append(event | {"args": args})


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    home = tmp_path_factory.mktemp("pictures")
    (home / "ranks").mkdir()
    for rank in range(2):
        _rank(home / "ranks" / f"rank{rank}.json", rank)
    things = {"ranks": home / "ranks"}
    things["program"] = REPOSITORY / "fixtures" / "h100-programs" / "attention-blocked-scan-small-dots.hlo.pb.xz"
    logs = corpus_files("tlparse", "*cache*.log.gz")
    if logs:
        things["log"] = logs[0]
    with serving(home, *things.values()) as server:
        keys = {kind: item.key for kind, item in zip(things, Shelf(list(things.values())).items(), strict=True)}
        yield server, keys
    shutil.rmtree(home, ignore_errors=True)


def _open(tab: Tab, served: tuple[Server, dict[str, str]], page: str, kind: str, ready: str, more: str = "") -> None:
    server, keys = served
    tab.open(f"{server.base}{page}?token={server.token}", "#page")
    tab.open(f"{server.base}{page}?run={keys[kind]}{more}", ready)


def _quiet(tab: Tab) -> None:
    assert tab.wrong == []
    assert tab.went_away() == []


def _point(tab: Tab, x: float, y: float) -> None:
    """Move the pointer to parts (0 to 1) of the chart's width and height, until its words are there."""
    box = tab.page.query_selector(".ps-chart .nsewdrag").bounding_box()
    for shift in (0, 2):  # plotly answers to a move, and not to the pointer's first appearance
        tab.page.mouse.move(box["x"] + x * box["width"] + shift, box["y"] + y * box["height"])
    tab.until(f"{HOVERED} !== ''")


def _click(tab: Tab) -> None:
    tab.page.mouse.down()
    tab.page.mouse.up()
    tab.until("new URLSearchParams(location.search).has('at')")


def test_a_cell_says_who_waited_and_leads_to_the_timeline(tab: Tab, served: tuple[Server, dict[str, str]]) -> None:
    server, keys = served
    _open(tab, served, "timeline", "ranks", ".ps-timeline[data-ready]")  # its origin is known once it is made
    tab.open(f"{server.base}ranks?run={keys['ranks']}", CHART)
    _point(tab, 1.5 / 8, 0.25)
    hovered = tab.page.evaluate(HOVERED)
    assert "rank 0" in hovered
    assert "collective 2: all_reduce" in hovered
    assert "waited 400" in hovered
    _click(tab)
    tab.until("document.querySelector('#heat-cell a') !== null")
    assert "rank 0, waited 400 us at collective 2: all_reduce" in tab.page.inner_text("#heat-cell")
    href = tab.page.get_attribute("#heat-cell a", "href")
    found = {key: int(value) for key, value in re.findall(r"(t0|t1|trace)=(-?\d+)", href)}
    # rank 0 begins its second collective 1000 us after the first event, and is in it for 700 us
    assert found["t0"] < 1_000_000 < 1_700_000 < found["t1"] < 2_500_000
    assert found["trace"] == 0
    tab.page.click("#heat-cell a")
    tab.until("document.querySelector('.ps-timeline[data-ready]') !== null")
    _quiet(tab)


def test_the_other_map_and_the_other_tables(tab: Tab, served: tuple[Server, dict[str, str]]) -> None:
    _open(tab, served, "ranks", "ranks", CHART, "&map=busy&table=collectives&at=1.0")
    assert "rank 1, step 1: device busy" in tab.page.inner_text("#heat-cell")
    tab.until("document.querySelectorAll('.ag-row').length > 7")
    assert "400 us" in tab.page.inner_text(".ag-root")
    _quiet(tab)


def test_a_moment_of_the_memory_shows_its_blocks(tab: Tab, served: tuple[Server, dict[str, str]]) -> None:
    _open(tab, served, "memory", "ranks", CHART)
    heading = "document.querySelector('#memory-alive h2').innerText"
    assert "the peak" in tab.page.evaluate(heading)
    assert HOSTILE in tab.page.inner_text("#memory-alive")  # as text
    assert tab.page.query_selector("#page img") is None
    assert tab.page.inner_text("#memory-alive tbody tr").startswith("32.0 KiB")
    _point(tab, 0.3, 0.5)
    assert "MiB" in tab.page.evaluate(HOVERED)
    _click(tab)
    tab.until(f"!{heading}.includes('the peak')")
    tab.page.click("text=the peak")
    tab.until(f"{heading}.includes('the peak')")
    tab.page.wait_for_selector(".ag-row")  # to be seen, and not only there
    _quiet(tab)


def test_the_schedule_of_a_program_is_an_axis(tab: Tab, served: tuple[Server, dict[str, str]]) -> None:
    _open(tab, served, "memory", "program", CHART, "&by=modules")
    assert "The axis is the program's schedule" in tab.page.inner_text("#page")
    assert "instruction" in tab.page.inner_text("#memory-alive h2")
    assert "in the timeline" not in tab.page.inner_text("#memory-alive")  # a schedule has no clock
    _quiet(tab)


def test_programs_and_logs_as_tables(tab: Tab, served: tuple[Server, dict[str, str]]) -> None:
    _open(tab, served, "compile", "program", ".ag-row")
    assert "FLOPs per run" in tab.page.inner_text(".ag-root")
    if "log" in served[1]:
        tab.open(f"{served[0].base}compile?run={served[1]['log']}", ".ag-row")
        assert "Compile time by frame and stage" in tab.page.inner_text(".ps-bars")
        tab.page.click("text=Compiled kernels")
        tab.until("document.querySelector('.ag-root')?.innerText.includes('made by')")
    _quiet(tab)


def test_the_account_is_on_the_first_screen_and_findings_begin_there(
    tab: Tab, served: tuple[Server, dict[str, str]]
) -> None:
    for kind in ("ranks", "program"):
        _open(tab, served, "overview", kind, ".ps-over")
        boxes = [one.bounding_box() for one in tab.page.locator(".ps-over-head, .ps-first").all()]
        assert max(box["y"] for box in boxes if box is not None) < 900, kind
        assert "Not recorded" in tab.page.inner_text("#page")
        assert "compare with" not in tab.page.inner_text(".ps-over-head")  # nothing else of its kind is open
    _quiet(tab)


BROKEN = """() => [...document.querySelectorAll('.ag-header-cell-text')].flatMap((one) => {
  const text = one.firstChild, found = [];
  if (!text || text.nodeType !== 3) return found;
  for (const word of text.data.matchAll(/\\S+/g)) {
    const range = document.createRange();
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    if (range.getClientRects().length > 1) found.push(word[0]);
  }
  return found;
})"""


@pytest.mark.parametrize("page", ["memory&by=modules", "ranks&table=members", "kernels"])
def test_titles_of_columns_break_between_words(tab: Tab, served: tuple[Server, dict[str, str]], page: str) -> None:
    name, _, more = page.partition("&")
    _open(tab, served, name, "ranks", ".ag-header-cell-text", f"&{more}" if more else "")
    tab.until("document.querySelectorAll('.ag-row').length > 0")
    assert tab.page.evaluate(BROKEN) == []
    _quiet(tab)
