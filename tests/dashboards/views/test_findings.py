"""The page of findings: pieces of the timeline, events of a line where a rule names no piece, and why there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from perfscope.analyzers.engine import analyze
from perfscope.dashboards.views import Gathered, Job, Place, findings, timeline
from perfscope.model.finding import Finding, Outcome, Span, Where
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.hlo_build import hlo_module, hlo_trace
from tests.memory.build import MemoryBuilder

PROGRAM = "ENTRY %main (a: f32[4]) -> f32[4] {\n  ROOT %a = f32[4]{0} parameter(0)\n}"


def _row(trace: Trace, folder: Path, rule: str = "host_sync", **told: Any) -> dict[str, Any]:
    """What the page has of one finding, beside the timeline as the server's child leaves it."""
    place = Place(folder=folder / "timeline" / "0", number=0)
    place.folder.mkdir(parents=True)
    timeline.gather(trace, place)
    finding = Finding(subject="s", title="t", severity="low", basis="structural", advice="a", **told)
    outcome = Outcome(rule=rule, status="flagged", findings=(finding,))
    analysis = replace(analyze(trace, rules=[]), outcomes=(outcome,))
    mine = Place(folder=folder / "findings" / "0", number=0)
    gathered = [Gathered(source=trace.source, place=mine, held=None)]
    job = Job(analysis=analysis, traces=[trace], report={}, gathered=gathered, folder=folder / "findings")
    (row,) = findings.view(job)["findings"]
    return row  # type: ignore[no-any-return]


def _ran() -> TraceBuilder:
    made = TraceBuilder()
    made.python("train.py(30): read", 100, 190)
    made.op("aten::item", 110, 150)
    return made


def test_a_piece_before_the_first_event_is_said_to_be_before_it(tmp_path: Path) -> None:
    row = _row(_ran().build(), tmp_path, spans=(Span(start_ns=60_000, end_ns=120_000),))
    assert row["at"] == [{"mark": "0:60000-120000", "said": "60.0 us, 40.0 us before the start"}]
    assert (row["how"], row["none"]) == ("piece", "")


def test_where_a_rule_names_no_piece_it_leads_to_the_events_of_its_line(tmp_path: Path) -> None:
    row = _row(_ran().build(), tmp_path, where=Where(file="train.py", line=30))
    assert row["at"] == [{"mark": "0:110000-150000", "said": "40.0 us, 10.0 us behind the start"}]
    assert (row["how"], row["none"]) == ("line", "")


def test_of_what_no_event_is_it_is_said(tmp_path: Path) -> None:
    row = _row(_ran().build(), tmp_path / "a", where=Where(file="other.py", line=3, op="aten::relu"))
    assert (row["at"], row["none"]) == ([], "no recorded event is of its line, module, op, kernel or instruction")
    assert _row(_ran().build(), tmp_path / "b")["none"] == "it is about the recording as a whole"


def test_of_a_program_it_is_said_that_nothing_ran(tmp_path: Path) -> None:
    row = _row(hlo_trace(hlo_module(PROGRAM)), tmp_path, where=Where(op="dot"))
    assert (row["at"], row["find"], row["none"]) == ([], [], "compiled program: nothing ran")


def test_of_memory_of_the_detail_pass_it_is_said_and_its_page_is_named(tmp_path: Path) -> None:
    made = MemoryBuilder()
    made.make(1, 1 << 20, 10)
    trace = _ran().build()
    trace.detail = made.build()
    row = _row(trace, tmp_path, "peak_owner", cost_bytes=1 << 20)
    assert row["none"] == "its memory was recorded in the detail pass, behind the steps that the timeline shows"
    assert row["memory"]
