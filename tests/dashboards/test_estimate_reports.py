from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from jsonschema import Draft202012Validator

from perfscope.analyzers.engine import analyze
from perfscope.analyzers.estimate import Range
from perfscope.dashboards.reports import html_report, json_report, markdown, text
from perfscope.dashboards.reports.estimate_words import of_step, range_text
from perfscope.model.trace import Trace
from tests.hlo_build import hlo_module, hlo_trace, recorded_trace
from tests.predict.targets import target
from tests.predict.test_calibration import chain
from tests.predict.test_programs import ASYNC, compiled

SCHEMA = Path(__file__).parents[2] / "docs" / "report-schema.json"


def sharded() -> Trace:
    trace = hlo_trace(hlo_module(ASYNC))
    trace.target = target("H100 SXM", (1, 8))
    return trace


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
    assert 'class="ps-streams"' in page
    assert "modelled time of a run" in page
    assert "top to bottom: compute, collectives" in page
    assert 'class="ps-streams"' not in html_report.render(analyze(compiled("jit_step")))


def test_measured_stands_beside_modelled() -> None:
    recording = recorded_trace(chain(2), ops=[("n0", 0, 50), ("n1", 50, 9_050)], runs=[1, 1])
    analysis = analyze([compiled("jit_step"), recording])
    said = " ".join(text.render(analysis, verbose=True).split())
    assert "measured 9.05 ms a run (median of 1 run, the same program): outside the modelled" in said
    held = json.loads(json_report.render(analysis))
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(held)
    calibration = held["estimate"]["programs"][0]["calibration"]
    assert calibration["measured_ns"] == 9_050_000
    assert not calibration["inside"]
    assert "measured against modelled" in html_report.render(analysis)


def test_names_of_strangers_are_made_fit_to_show() -> None:
    module = replace(chain(2), name="jit_<script>alert(1)</script>\x1b[31m")
    trace = hlo_trace(module)
    trace.target = target("H100 SXM")
    analysis = analyze(trace)
    page = html_report.render(analysis)
    assert "<script>alert" not in page.replace("\\u003c", "")
    assert "\x1b" not in page
    assert "\x1b" not in text.render(analysis)
    assert "<script>alert" not in markdown.render(analysis)


def test_programs_without_a_target_get_no_section() -> None:
    analysis = analyze(hlo_trace(chain(2)))
    assert "Modelled time" not in text.render(analysis)
    held = json.loads(json_report.render(analysis))
    assert held["estimate"] == {"programs": [], "left": 0, "step": None, "problems": []}


def test_words_of_ranges() -> None:
    assert range_text(Range(low=1_200_000, high=3_410_000)) == "1.20 to 3.41 ms"
    assert range_text(Range(low=900_000, high=3_410_000)) == "900 us to 3.41 ms"
    assert range_text(Range(low=5, high=5)) == "5 ns"
    assert of_step(Range(low=10, high=60), Range(low=100, high=200)) == "10-30%"
    assert of_step(Range(low=0, high=0), Range(low=0, high=0)) == "-"
