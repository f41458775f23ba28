"""Compiled programs in all reports: words, columns that fit, and sentences for unknown values."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from perfscope.analyzers.engine import Analysis, TimedWindow, analyze
from perfscope.analyzers.predict import Range
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.sections.programs import ProgramsSection, plan_section
from perfscope.dashboards.report import html_report, json_report, markdown, text
from perfscope.dashboards.report.renderers.html import section_html
from perfscope.dashboards.report.renderers.page import page
from perfscope.dashboards.report.renderers.values import finding_words, range_text
from perfscope.dashboards.report.sections.estimate import ends, of_step
from perfscope.dashboards.report.sections.plan import plan_sections
from perfscope.dashboards.report.sections.programs import NO_PEAKS, NO_PEAKS_CPU, programs_sections
from perfscope.dashboards.report.summary import summarize
from perfscope.model.finding import Finding, Outcome
from perfscope.model.trace import Trace
from tests.browser.chromium import binary, browser
from tests.conftest import REPOSITORY
from tests.hlo_build import hlo_module, hlo_trace, recorded_trace
from tests.predict.targets import target
from tests.predict.test_calibration import chain
from tests.predict.test_programs import ASYNC, compiled
from tests.programs.test_programs import cpu_trace, loop, step
from tests.report.analyses import MS, analysis, programs, source
from tests.report.cells import listed, rows


def section(**changes: object) -> ProgramsSection:
    built = programs()
    return replace(built, programs=(replace(built.programs[0], **changes),))  # type: ignore[arg-type]


def test_a_row_says_what_is_measured_modelled_and_a_lower_bound() -> None:
    first, hot = programs_sections(programs())
    assert rows(first.table("")) == [{
        "program": "jit_step", "runs": "3 x 8", "time": "42.0 ms", "share": "100.0%", "FLOPs": ">= 2.00 G",
        "bytes": ">= 3.00 GiB", "peak": "5.00 GiB", "least time": "1.10 ms", "bound by": "memory", "MFU": "12.3%",
    }]  # fmt: skip
    assert first.texts()[:6] == (
        "per run: 1.75 ms of instructions in 2.00 ms from first to last; 1.67 ms in the calls that began them, the rest"
        " in a thread pool (measured)",
        "FLOPs: forward 75.0%, recompute 25.0% (modelled)",
        "least time 1.10 ms per run on H100 SXM: bound by memory 90.9%, link 9.1% (modelled)",
        "MFU 12.3%, HFU 16.4% over the span of a run (FLOPs modelled, time measured)",
        "1 instruction whose arithmetic is not known (custom calls): FLOPs are a lower bound",
        "runs and time measured; FLOPs, bytes, least time modelled; peak memory as XLA assigned it",
    )
    assert (
        hot.title
        == "Where the time of rank 0 goes: 42.0 ms of instructions, measured, 28.6% of it in no recorded program"
    )
    assert [list(row.values()) for row in rows(hot.table("by source line"))] == [
        ["30.0 ms", "71.4%", "train.py:88", "mlp/dot_general", "1"],
        ["12.0 ms", "28.6%", "in no recorded program", "", ""],
    ]


def test_a_cpu_has_no_roofline_and_says_so_once() -> None:
    first = programs_sections(section(platform="cpu", least=None, utilization=None))[0]
    assert first.texts().count(NO_PEAKS_CPU) == 1
    assert not {"least time", "bound by", "MFU"} & {head.title for head in first.table("").heads}


def test_a_device_without_peaks_says_so() -> None:
    assert NO_PEAKS in programs_sections(section(least=None, utilization=None))[0].texts()


def test_modelled_memory_is_marked() -> None:
    first = programs_sections(section(peak_known_by="modelled"))[0]
    assert rows(first.table(""))[0]["peak"] == "~5.00 GiB"
    assert any("peak memory modelled (~)" in text for text in first.texts())


def test_executions_that_are_not_numbered_are_marked() -> None:
    ran = programs().programs[0].execution
    assert ran is not None
    first = programs_sections(section(execution=replace(ran, counted=False, span_ns=None, devices=1, count=5)))[0]
    assert first.table("").column("runs") == ("~5",)


def test_no_programs_no_section() -> None:
    assert programs_sections(ProgramsSection()) == ()
    held = analysis(programs=programs())
    for render, heading in ((text.render, "Compiled programs"), (html_report.render, "Compiled programs")):
        assert heading in render(held)
        assert heading not in render(analysis())


def test_a_section_that_broke_says_why() -> None:
    held = analysis(programs=ProgramsSection(problems=("the compiled programs could not be summed up: KeyError: 'x'",)))
    for said in (text.render(held), markdown.render(held), html_report.render(held)):
        assert "could not be summed up" in said


@pytest.mark.parametrize("width", [80, 90, 110, 160])
@pytest.mark.parametrize("verbose", [False, True])
def test_text_fits_and_keeps_numbers_whole(width: int, verbose: bool) -> None:
    name = "a_function_with_a_name_that_is_rather_long"
    held = analysis(programs=programs(name, f"src/{name}/{name}.py", f"{name}/{name}/dot_general"))
    said = text.render(held, width=width, verbose=verbose)
    assert max(map(len, said.splitlines())) <= width
    assert ":88" in said
    assert "71.4%" in said
    assert "42.0 ms" in said


def test_text_is_short_and_v_shows_all() -> None:
    held = analysis(programs=programs())
    short, long = (text.render(held, verbose=verbose) for verbose in (False, True))
    assert "train.py:88" in short
    assert "fusion.3" not in short
    assert "fusion.3" in long
    assert "backward" in long


def test_markdown_is_folded() -> None:
    said = markdown.render(analysis(programs=programs()))
    assert "<details><summary>Compiled programs: 1 program, 1 of them ran in the recording</summary>" in said
    assert "<details><summary>Where the time of rank 0 goes: 42.0 ms" in said
    assert "| &gt;= 2.00 G |" in said


def test_html_has_both_cards() -> None:
    said = html_report.render(analysis(programs=programs()))
    assert "<h2>Compiled programs</h2>" in said
    assert "<h2>Where the time of rank 0 goes" in said
    assert 'data-name="MFU">12.3%' in said


def test_json_holds_what_the_schema_says() -> None:
    schema = Draft202012Validator(json.loads((REPOSITORY / "docs" / "report-schema.json").read_text()))
    for held in (
        analysis(programs=programs()),
        analyze(hlo_trace(step(), loop(None)), rules=[]),
        analyze(recorded_trace(step(), ops=[("dot", 0, 300), ("odd", 300, 310)], runs=[1, 1]), rules=[]),
        analyze(cpu_trace(), rules=[]),
    ):
        written = json.loads(json_report.render(held))
        schema.validate(written)
        assert written["programs"]["items"]
    ran = json.loads(json_report.render(analysis(programs=programs())))["programs"]
    assert ran["items"][0]["least"]["bound"] == "memory"
    assert ran["hot_spots"][0]["left"]["lines"] == {"count": 0, "time_ns": 0}


def test_what_ran_on_the_cpu_is_said() -> None:
    summary = summarize(analyze(cpu_trace(), rules=[]))
    assert "XLA CPU: 1 program, 70.0 us of instruction time (thread pool time, may exceed wall time)" in summary.facts
    (nothing_ran,) = set(summarize(analysis(devices=())).facts) - set(summarize(analysis()).facts)
    assert nothing_ran not in summary.facts


def alone(format_: str) -> Analysis:
    finding = Finding(subject="s", title="t", severity="low", basis="modelled", advice="a", cost_ns=95_400)
    return analysis(
        sources=(msgspec.structs.replace(source("x.hlo.txt", None), format=format_),), steps=(), devices=(),
        outcomes=(Outcome(rule="r", status="flagged", findings=(finding,)),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("format_", "saves", "over"), [("hlo_text", "95.4 us per run", "run"), ("xplane", "95.4 us in all", "trace")]
)
def test_a_cost_says_what_it_is_over(format_: str, saves: str, over: str) -> None:
    held = alone(format_)
    assert finding_words(summarize(held).timed[0]).saves == saves
    for said in (text.render(held), markdown.render(held), html_report.render(held)):
        assert saves in said
    finding = json_report.document(held)["outcomes"][0]["findings"][0]
    assert (finding["cost_ns"], finding["cost_over"]) == (95_400, over)


def test_the_page_shows_the_step_time_with_the_devices_waited_for() -> None:
    window = TimedWindow(rank=0, duration_ns=400 * MS, steps=4)
    said = html_report.render(analysis(windows=(window,)))
    assert '<div class="big">100 ms</div><div class="note">mean of 4 without a profiler, waited for' in said
    same = html_report.render(analysis(windows=(replace(window, duration_ns=4 * 41 * MS),)))
    assert "waited for" not in same  # the host's own steps say the same


def test_the_time_shown_is_the_time_measured() -> None:
    held = programs()
    assert held.hot_spots[0].total_ns == held.instructions_ns == 42 * MS


RECORDED = REPOSITORY / "fixtures" / "plans-h100"
TIMES = re.compile(r"(?: \((\d+) times\))?$")


@pytest.mark.parametrize("name", sorted(folder.name for folder in RECORDED.iterdir() if folder.is_dir()))
def test_what_inductor_left_apart_is_said_once_and_counted(name: str) -> None:
    section = plan_section(load_all(RECORDED / name))
    (plan,), (view,) = section.plans, plan_sections(section)
    apart = listed(view, "not fused")
    sentences = [TIMES.sub("", sentence) for sentence in apart]
    assert len(set(sentences)) == len(sentences)
    assert sum(int(match.group(1) or 1) for match in map(TIMES.search, apart) if match) == len(plan.apart)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 820, 1280])
def test_tables_of_a_plan_never_scroll_sideways(tmp_path: Path, width: int) -> None:
    if binary() is None:
        pytest.skip("no Chromium on this machine")
    (view,) = plan_sections(plan_section(load_all(RECORDED / "moe-loop")))
    file = tmp_path / "plan.html"
    file.write_text(page([section_html(view)], title="plan", data_id="plan", data="{}"))
    with browser(tmp_path / "profile") as opened:
        opened.open(file, width=width)
        assert opened.value("document.querySelectorAll('.scroll').length") > 4
        wider = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth + 1).length"
        assert opened.value(wider) == 0


SCHEMA = Path(__file__).parents[2] / "docs" / "report-schema.json"


def sharded() -> Trace:
    trace = hlo_trace(hlo_module(ASYNC))
    return msgspec.structs.replace(trace, target=target("H100 SXM", (1, 8)))


def test_every_face_says_that_it_is_modelled_and_on_what() -> None:
    analysis = analyze(sharded())
    for face in (text.render(analysis), markdown.render(analysis), html_report.render(analysis)):
        assert "8 H100 SXM" in face
        assert "modelled" in face
    said = text.render(analysis, verbose=True)
    assert "not in it: no autotuning" in " ".join(said.split())
    assert "assumed: links: " in " ".join(said.split())
    assert "launches" in said


def test_the_json_report_keeps_its_schema_and_adds_up() -> None:
    held = json.loads(json_report.render(analyze(sharded())))
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(held)
    (program,) = held["estimate"]["programs"]
    assert program["known_by"] == "modelled"
    assert program["target"] == "8 H100 SXM"
    for end in ("low", "high"):
        assert sum(program["parts_ns"][end].values()) == program["step_ns"][end]
    assert {row["name"] for row in program["instructions"]} == {"start", "work"}


def test_streams_are_drawn_where_there_are_several() -> None:
    page = html_report.render(analyze(sharded()))
    assert 'class="ps-lane"' in page
    assert "modelled time of a run" in page
    assert re.findall(r'<div class="lane"><div>(\w+)</div>', page) == ["compute", "collectives"]
    assert 'class="ps-lane"' not in html_report.render(analyze(compiled("jit_step")))


def test_measured_stands_beside_modelled() -> None:
    recording = recorded_trace(chain(2), ops=[("n0", 0, 50), ("n1", 50, 9_050)], runs=[1, 1])
    analysis = analyze([compiled("jit_step"), recording])
    said = " ".join(text.render(analysis, verbose=True).split())
    assert "measured 9.05 ms per run (median of 1 run, the same program): outside the modelled" in said
    held = json.loads(json_report.render(analysis))
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(held)
    calibration = held["estimate"]["programs"][0]["calibration"]
    assert calibration["measured_ns"] == 9_050_000
    assert not calibration["inside"]
    assert "measured against modelled" in html_report.render(analysis)


def test_names_of_strangers_are_made_fit_to_show() -> None:
    module = msgspec.structs.replace(chain(2), name="jit_<script>alert(1)</script>\x1b[31m")
    trace = hlo_trace(module)
    trace = msgspec.structs.replace(trace, target=target("H100 SXM"))
    analysis = analyze(trace)
    page = html_report.render(analysis)
    assert "<script>alert" not in page.replace("\\u003c", "")
    assert "\x1b" not in page
    assert "\x1b" not in text.render(analysis)
    assert "<script>alert" not in markdown.render(analysis)


def test_programs_without_a_target_get_no_section() -> None:
    analysis = analyze(hlo_trace(chain(2)))
    held = json.loads(json_report.render(analysis))
    assert held["estimate"] == {"programs": [], "left": 0, "step": None, "problems": []}


def test_words_of_ranges() -> None:
    assert range_text(ends(Range(low=1_200_000, high=3_410_000))) == "1.20 to 3.41 ms"
    assert range_text(ends(Range(low=900_000, high=3_410_000))) == "900 us to 3.41 ms"
    assert range_text(ends(Range(low=5, high=5))) == "5 ns"
    assert of_step(Range(low=10, high=60), Range(low=100, high=200)) == "10-30%"
    assert of_step(Range(low=0, high=0), Range(low=0, high=0)) == "-"
