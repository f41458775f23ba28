"""Memories in all reports: the sentence, who holds the peak, the picture, and silence where none is known of."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.sections.memory import MemorySection
from perfscope.dashboards.report import html_report, json_report, markdown, text
from perfscope.dashboards.report.blocks import Areas, Table, Tile
from perfscope.dashboards.report.html_report import render
from perfscope.dashboards.report.renderers.areas import areas_html, ceiling, legend
from perfscope.dashboards.report.renderers.values import finding_words
from perfscope.dashboards.report.sections.memory import memory_fact, memory_sections, memory_tile
from perfscope.dashboards.report.sections.memory_picture import memory_areas
from perfscope.dashboards.report.summary import summarize
from perfscope.model.finding import Finding, Outcome
from perfscope.model.memory import SourceLine
from perfscope.model.trace import Trace
from tests.browser.chromium import Page, binary, browser
from tests.conftest import REPOSITORY
from tests.memory.build import MemoryBuilder
from tests.memory.test_section import of_rank
from tests.report.analyses import analysis
from tests.report.cells import rows
from tests.report.test_html import Parsed

TITLE = "Memory of cuda:2 on rank 2, the fullest of 4 ranks"
HEADLINE = "peak 1.08 KiB at 15.0 us of 200 us: step 4, forward, aten::mm, train.py:3"


@pytest.fixture(scope="module")
def judged() -> Analysis:
    return analyze([of_rank(rank, size=100 + 10 * (rank == 2), capacity=4000) for rank in range(4)], [])


def test_the_words_of_a_peak(judged: Analysis) -> None:
    (memory,) = memory_sections(judged.memory)
    assert (memory.title, memory.summary) == (TITLE, HEADLINE)
    assert memory_tile(judged.memory) == Tile(
        "peak memory",
        "1.08 KiB",
        "cuda:2 on rank 2, the fullest of 4 ranks; held before the recording began 90.1%, activation 9.9%",
    )
    assert memory_fact(judged.memory) == (
        "memory of cuda:2 on rank 2, the fullest of 4 ranks: peak 1.08 KiB "
        "(held before the recording began 90.1%, activation 9.9%)"
    )
    assert memory.texts() == (
        "2.93 KiB reserved at most, 63.0% of it not in use then; 1.85 KiB more than the peak in use; "
        "1000 B of the device's 3.91 KiB were never reserved; "
        "peaks of all: 1.07 KiB (rank 3) to 1.08 KiB (rank 2); "
        "measured, allocator events of torch.profiler",
    )
    assert rows(memory.table("")) == [
        {"category": "held before the recording began", "bytes": "1000 B", "share": "90.1%", "blocks": "",
         "basis": "the allocator's total", "mostly at": "", "there": ""},
        {"category": "activation", "bytes": "110 B", "share": "9.9%", "blocks": "1", "basis": "phases of the step",
         "mostly at": "train.py:3", "there": "110 B"},
    ]  # fmt: skip
    assert rows(memory.table("side by side"))[0] == {
        "memory": "rank 2", "peak": "1.08 KiB", "reserved": "2.93 KiB", "never reserved": "1000 B", "step": "4",
        "phase": "forward",
    }  # fmt: skip


def test_text_is_short_and_tells_all_when_asked(judged: Analysis) -> None:
    short = text.render(judged, width=80)
    assert f"{TITLE}: peak 1.08 KiB" in short
    assert max(map(len, short.splitlines())) <= 80
    assert "more with -v" in short
    verbose = text.render(judged, verbose=True)
    assert f"{TITLE}: {HEADLINE}".replace(" ", "") in re.sub(r"\s", "", verbose)
    assert "held before the recording began" in verbose
    assert "rank 3" in verbose


def test_markdown_and_html_hold_it(judged: Analysis) -> None:
    folded = markdown.render(judged)
    assert f"<details><summary>{TITLE}: {HEADLINE}</summary>" in folded
    assert "| activation | 110 B |" in folded
    page = html_report.render(judged)
    assert page.count('<svg class="ps-memory"') == 1
    assert '<div class="tile">peak memory</div><div class="big">1.08 KiB</div>' in page
    assert "side by side" in page
    assert "the picture in numbers" in page
    assert Parsed(page).open == []


def test_json_is_of_the_schema_and_sums(judged: Analysis) -> None:
    held = json.loads(json_report.render(judged))
    schema = json.loads((REPOSITORY / "docs" / "report-schema.json").read_text())
    Draft202012Validator(schema).validate(held)
    (memory,) = held["memory"]["items"]
    assert memory["peak_bytes"] == sum(one["bytes"] for one in memory["by_category"]) + memory["unseen_bytes"]
    assert (memory["rank"], memory["source"], len(memory["others"])) == (2, 2, 4)
    picture = memory["picture"]
    at = picture["positions"].index(memory["peak_position"])
    assert sum(held[at] for held in picture["bytes"].values()) + picture["unseen_bytes"] == memory["peak_bytes"]


def test_the_picture_says_it_in_words_and_numbers_too(judged: Analysis) -> None:
    worst = judged.memory.entries[0].worst
    assert worst.picture is not None
    picture = memory_areas(worst, worst.picture, "what it shows")
    drawn = areas_html(picture)
    assert 'role="img" aria-label="what it shows"' in drawn
    assert "peak 1.08 KiB" in drawn
    assert ">size of the device<" in drawn
    assert ">3.91 KiB<" in drawn
    assert ceiling(picture) >= 4000
    assert "style=" not in drawn  # the page's policy forbids it
    assert re.findall(r"</svg> ([^<]+)<", legend(picture)) == [
        "reserved (line)", "activation", "held before", "forward", "backward",
    ]  # fmt: skip
    moments = rows(memory_sections(judged.memory)[0].table("the picture in numbers"))
    peak = [row for row in moments if row["in use"] == "1.08 KiB"]
    assert len(peak) == 1
    assert peak[0] == {
        "at": "15.0 us of 200 us", "in use": "1.08 KiB", "held before": "1000 B", "activation": "110 B",
        "reserved": "2.93 KiB",
    }  # fmt: skip


def test_a_moment_has_no_picture_and_no_peak() -> None:
    b = MemoryBuilder()
    b.row("held", on_device=True, ordinal=0, address=1, bytes=2048, count=1, state=0, segment=-1, category=1, frame=-1)
    memory = analyze([b.build()], []).memory
    (section,) = memory_sections(memory)
    assert section.summary == "2.00 KiB held at one moment"
    assert not any(isinstance(block, Areas) for block in section.blocks)
    assert memory_fact(memory) == "memory of cuda:0 on rank 0: 2.00 KiB held at one moment (parameter 100.0%)"


def test_a_memory_far_smaller_than_the_largest_is_folded() -> None:
    b = MemoryBuilder()
    b.make(1, 1 << 20, 1)
    b.make(2, 8, 2, device=-1)
    judged = analyze([b.build()], [])
    assert "more with -v: Memory of the host" in " ".join(text.render(judged).split())
    assert "Memory of the host: peak" not in " ".join(text.render(judged).split())
    assert "Memory of the host" in text.render(judged, verbose=True)
    assert "<summary>Memory of the host" in html_report.render(judged)


def test_a_reserve_that_cannot_be_is_said_and_no_share_is_made_of_it() -> None:
    (section,) = memory_sections(analyze([of_rank(0, size=5000)], []).memory)
    (fact,) = (text for text in section.texts() if "reserved at most" in text)
    assert fact.startswith(
        "2.93 KiB reserved at most, as recorded: less than what is in use, so one of the two is not complete"
    )
    assert "-" not in fact


def test_a_rank_that_has_two_recordings_and_one_of_two_devices_are_told_apart() -> None:
    (twice,) = memory_sections(analyze([of_rank(0), of_rank(0, size=50)], []).memory)
    assert twice.title == "Memory of cuda:0 on rank 0, the fullest of 2 recordings"
    assert twice.table("side by side").column("memory") == ("source 0", "source 1")
    b = MemoryBuilder()
    b.make(1, 10, 1)
    b.make(1, 20, 2, device=1)
    (once,) = memory_sections(analyze([b.build()], []).memory)
    assert once.title == "Memory of cuda:1 on rank 0, the fullest of 2 devices"
    assert once.table("side by side").column("memory") == ("cuda:1", "cuda:0")


def test_lists_that_are_cut_say_what_is_missing() -> None:
    b = MemoryBuilder()
    for line in range(25):
        b.python(f"train.py({line + 1}): main", 10 * line, 10 * line + 9)
        b.make(line + 1, 1024, 10 * line + 1)
    held = analyze([b.build()], [])
    assert "and 5 more which hold less" in text.render(held, verbose=True)
    assert "- and 17 more which hold less" in markdown.render(held)
    assert "and 5 more which hold less" in html_report.render(held)


def test_what_broke_is_said_and_nothing_is_silent(judged: Analysis) -> None:
    broken = analysis(memory=MemorySection(problems=("the memory could not be summed up: x",)))
    for said in (text.render(broken), markdown.render(broken), html_report.render(broken)):
        assert "could not be summed up" in said
    with_memory, without = analysis(memory=judged.memory), analysis()
    for shown in (text.render, markdown.render, html_report.render):
        assert "Memory of" in shown(with_memory)
        assert "Memory of" not in shown(without)


def test_names_of_strangers_are_words(judged: Analysis) -> None:
    evil = "<script>alert(1)</script>|`x`\x1b[31m"
    entry = judged.memory.entries[0]
    line = SourceLine(file=f"/home/alice/{evil}.py", line=3)
    category = replace(entry.worst.by_category[0], place=line, name=evil)
    rows = tuple(replace(one, name=evil, line=line) for one in entry.worst.by_line.rows)
    worst = replace(
        entry.worst, label=evil, op=evil, line=line, notes=(evil,), by_category=(category,), known_from=evil,
        by_line=replace(entry.worst.by_line, rows=rows), by_module=replace(entry.worst.by_line, rows=rows),
    )  # fmt: skip
    others = tuple(replace(one, label=evil) for one in entry.others)
    shown = analysis(memory=replace(judged.memory, entries=(replace(entry, worst=worst, others=others),)))
    assert "<script>alert" not in html_report.render(shown).split('<script type="application/json"')[0]
    assert "<script>" not in markdown.render(shown)
    for said in (text.render(shown, verbose=True), markdown.render(shown), html_report.render(shown),
                 json_report.render(shown)):  # fmt: skip
        assert "\x1b" not in said
        assert "~/" in said
        assert "alice" not in said
    assert Parsed(html_report.render(shown)).open == []


def test_what_a_fix_gives_back_of_the_memory_is_its_gain_and_not_what_it_moves() -> None:
    finding = Finding(
        subject="scores", title="scores hold 2 GiB", severity="medium", basis="measured", advice="Do not.",
        cost_bytes=2 << 30,
    )  # fmt: skip
    freed, held_bytes = replace(finding, bytes_are="freed"), replace(finding, bytes_are="held")
    told = [
        finding_words(
            summarize(analysis(outcomes=(Outcome(rule="r", status="flagged", findings=(item,)),))).findings[0]
        )
        for item in (freed, held_bytes, finding)
    ]
    assert [(row.gain, row.moves) for row in told] == [
        ("2.00 GiB", ""), ("saving unknown", ""), ("saving unknown", "2.00 GiB"),
    ]  # fmt: skip
    held = analysis(outcomes=(Outcome(rule="peak_owner", status="flagged", findings=(freed,)),))
    assert "1. 2.00 GiB  peak_owner (measured)" in text.render(held)
    assert "| 2.00 GiB |" in markdown.render(held)
    assert "<b>2.00 GiB</b><span>of memory</span>" in html_report.render(held)
    moved = analysis(outcomes=(Outcome(rule="resharding_collective", status="flagged", findings=(finding,)),))
    assert "moves 2.00 GiB" in text.render(moved, verbose=True)
    assert "moves" not in text.render(held, verbose=True)


def test_a_memory_of_which_nothing_was_in_use_says_what_it_knows() -> None:
    b = MemoryBuilder(rank=None, recorded=frozenset({"memory", "memory_state"}))
    b.row("segments", on_device=True, ordinal=0, address=1, bytes=2 << 20, allocated_bytes=0, active_bytes=0,
          stream=3, expandable=False)  # fmt: skip
    b.make(64, 0, 1, reserved_bytes=-1, allocated_bytes=-1)
    b.free(64, 2, size=0, reserved_bytes=-1, allocated_bytes=-1)
    judged = analyze([b.build()], [])
    (memory,) = memory_sections(judged.memory)
    assert memory.summary == "nothing was in use"
    assert not any(isinstance(block, Table) for block in memory.blocks)
    fact, note = memory.texts()
    assert fact.startswith("2.00 MiB reserved at most, 100.0% of it not in use then")
    assert note == "all 2 events of the history are of 0 bytes"
    assert memory_fact(judged.memory) == "memory of cuda:0: nothing was in use"
    assert memory_tile(judged.memory) == Tile("peak memory", "0 B", "cuda:0")
    said = text.render(judged, verbose=True)
    assert "Memory of cuda:0: nothing was in use\n" in said
    assert "all 2 events of the history are of 0 bytes" in said
    assert Parsed(html_report.render(judged)).open == []
    assert "Nothing was in use." in html_report.render(judged)
    assert "nothing was in use" in markdown.render(judged)
    assert json.loads(json_report.render(judged))["memory"]["items"][0]["reserved"]["peak_bytes"] == 2 << 20


GIB = 1 << 30
MEMORY_OVERLAPS = """(() => {
  const box = one => { const b = one.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom] }
  // a line of text is higher than its letters
  const tight = one => { const b = box(one); return [b[0], b[1] + 3, b[2], b[3] - 3] }
  const meets = (a, b) => a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
  const texts = [...document.querySelectorAll('.ps-memory text')]
  const card = box(document.querySelector('.ps-memory').closest('.card'))
  const plot = box(document.querySelector('.ps-memory')), found = []
  texts.forEach((text, at) => {
    const here = tight(text)
    if (here[0] < card[0] || here[2] > card[2]) found.push(text.textContent + ' leaves the card')
    if (text.getAttribute('x') === '-6' && here[2] > plot[0]) found.push(text.textContent + ' on the areas')
    texts.slice(at + 1).forEach(other => {
      if (meets(here, tight(other))) found.push(text.textContent + ' on ' + other.textContent)
    })
  })
  return found
})()"""


def steps(count: int, *, fullest: int, capacity: int | None = None) -> Trace:
    """``count`` steps, numbered from 1000, that hold 10 + 54 GiB each, and the ``fullest`` of them 18 more."""
    b = MemoryBuilder(rank=None)
    b.device(0)
    if capacity is not None:
        b.tables["devices"][-1]["memory_bytes"] = capacity
    b.starts_with(10 * GIB)
    for step in range(count):
        b.step(1000 + step, 200 * step, 200 * step + 190)
        for block in range(6):
            size = (9 + 3 * (step == fullest)) * GIB
            b.make(1 + block, size, 200 * step + 5 + 10 * block, reserved_bytes=78 * GIB)
        for block in range(6):
            b.free(1 + block, 200 * step + 100 + 10 * block, reserved_bytes=78 * GIB)
    return b.build()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if binary() is None:
        pytest.skip("no Chromium on this machine")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize(
    ("count", "fullest", "numbers"), [(1, 0, 1), (3, 1, 3), pytest.param(240, 239, 4, marks=pytest.mark.slow)]
)
def test_words_lie_on_nothing(page: Page, tmp_path: Path, count: int, fullest: int, numbers: int, width: int) -> None:
    for capacity in (80 * GIB, 141 * GIB, None):
        file = tmp_path / f"{capacity}.html"
        file.write_text(render(analyze([steps(count, fullest=fullest, capacity=capacity)], [])))
        page.open(file, width=width)
        assert page.value(MEMORY_OVERLAPS) == []
        texts = page.value("[...document.querySelectorAll('.ps-memory text')].map(one => one.textContent)")
        assert sum(text.startswith("step ") for text in texts) == numbers
        assert ("size of the device" in texts) == (capacity == 80 * GIB)
        assert "64.0 GiB" in texts
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
