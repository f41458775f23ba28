"""Compiled programs in all reports: the words, the columns that fit, and what is said where nothing is known."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from jsonschema import Draft202012Validator

from perfscope.analyzers.engine import Analysis, TimedWindow, analyze
from perfscope.analyzers.programs_section import ProgramsSection
from perfscope.dashboards.reports import html_report, json_report, markdown, text
from perfscope.dashboards.reports.program_rows import NO_PEAKS, NO_PEAKS_CPU, programs_view
from perfscope.dashboards.reports.summary import summarize
from perfscope.model.finding import Finding, Outcome
from tests.conftest import REPOSITORY
from tests.dashboards.built import MS, analysis, programs, source
from tests.hlo_build import hlo_trace, recorded_trace
from tests.programs.test_programs import cpu_trace, loop, step


def section(**changes: object) -> ProgramsSection:
    built = programs()
    return replace(built, programs=(replace(built.programs[0], **changes),))  # type: ignore[arg-type]


def test_a_row_says_what_is_measured_modelled_and_a_lower_bound() -> None:
    view = programs_view(programs())
    assert view is not None
    (row,) = view.rows
    assert dict(row.cells()) == {
        "program": "jit_step", "runs": "3 x 8", "time": "42.0 ms", "share": "100.0%", "FLOPs a run": ">= 2.00 G",
        "bytes a run": ">= 3.00 GiB", "peak memory": "5.00 GiB", "least time": "1.10 ms", "bound by": "memory",
        "MFU": "12.3%",
    }  # fmt: skip
    assert row.details == (
        "a run: 1.75 ms of instructions in 2.00 ms from first to last; 1.67 ms in the calls that began them, the rest"
        " in a thread pool (measured)",
        "FLOPs: forward 75.0%, recompute 25.0% (modelled)",
        "least time 1.10 ms a run on H100 SXM: bound by memory 90.9%, link 9.1% (modelled)",
        "MFU 12.3%, HFU 16.4% over the span of a run (FLOPs modelled, time measured)",
        "1 instruction whose arithmetic is not known (custom calls): FLOPs are a lower bound",
    )
    assert view.known_by == "runs and time measured; FLOPs, bytes, least time modelled; peak memory as XLA assigned it"
    assert (
        view.hot_title
        == "where the time of rank 0 goes: 42.0 ms of instructions, measured, 28.6% of it in no recorded program"
    )
    assert view.lines is not None
    assert [[cell for _, cell in row.cells] for row in view.lines.rows] == [
        ["30.0 ms", "71.4%", "train.py:88", "mlp/dot_general", "1"],
        ["12.0 ms", "28.6%", "in no recorded program", "", "-"],
    ]


def test_a_cpu_has_no_roofline_and_says_so_once() -> None:
    view = programs_view(section(platform="cpu", least=None, utilization=None))
    assert view is not None
    assert view.notes.count(NO_PEAKS_CPU) == 1
    assert not {"least time", "bound by", "MFU"} & set(view.columns)


def test_a_device_without_peaks_says_so() -> None:
    view = programs_view(section(least=None, utilization=None))
    assert view is not None
    assert NO_PEAKS in view.notes


def test_modelled_memory_is_marked() -> None:
    view = programs_view(section(peak_known_by="modelled"))
    assert view is not None
    assert dict(view.rows[0].cells())["peak memory"] == "~5.00 GiB"
    assert "peak memory modelled (~)" in view.known_by


def test_executions_that_are_not_numbered_are_marked() -> None:
    ran = programs().programs[0].execution
    assert ran is not None
    view = programs_view(section(execution=replace(ran, counted=False, span_ns=None, devices=1, count=5)))
    assert view is not None
    assert dict(view.rows[0].cells())["runs"] == "~5"


def test_no_programs_no_section() -> None:
    assert programs_view(ProgramsSection()) is None
    assert "compiled program" not in text.render(analysis())
    assert "Compiled programs" not in html_report.render(analysis())


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
    assert "mlp/dot_general (backward)" in long


def test_markdown_is_folded_and_names_the_first_line() -> None:
    said = markdown.render(analysis(programs=programs()))
    (summary,) = [line for line in said.splitlines() if "1 compiled program" in line]
    assert summary.startswith("<details><summary>1 compiled program; where the time of rank 0 goes: 42.0 ms")
    assert "most at train.py:88 (71.4%)" in summary
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
    assert "no accelerator work in it" not in summary.facts


def test_without_programs_nothing_ran() -> None:
    assert "no accelerator work in it" in summarize(analysis(devices=())).facts


def alone(format_: str) -> Analysis:
    finding = Finding(subject="s", title="t", severity="low", basis="modelled", advice="a", cost_ns=95_400)
    return analysis(
        sources=(replace(source("x.hlo.txt", None), format=format_),), steps=(), devices=(),
        outcomes=(Outcome(rule="r", status="flagged", findings=(finding,)),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("format_", "saves", "over"), [("hlo_text", "95.4 us a run", "run"), ("xplane", "95.4 us in all", "trace")]
)
def test_a_cost_says_what_it_is_over(format_: str, saves: str, over: str) -> None:
    held = alone(format_)
    assert summarize(held).timed[0].saves == saves
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
