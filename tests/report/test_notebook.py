"""Display of a trace and of an analysis in a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import perfscope
from perfscope.analyzers.compare.runs.comparison import Comparison
from perfscope.analyzers.compare.runs.comparison import compare as compared
from perfscope.analyzers.engine import FRAME_COLUMNS
from perfscope.dashboards.report import text
from perfscope.dashboards.report.html_report import MOST_CELL_FINDINGS, analysis_html, trace_html
from perfscope.model.errors import DataError, UsageError
from perfscope.model.finding import Finding, Outcome
from tests.build import TraceBuilder
from tests.compare.runs import gpu_run
from tests.report.analyses import HOSTILE_NAMES, MS, analysis, hostile
from tests.report.test_html import Parsed


def built(name: str = "gemm") -> TraceBuilder:
    builder = TraceBuilder(path=f"{name}.json")
    builder.launched(name, 0, 10, 30, correlation=1)
    builder.kernel("all_reduce", 30, 40, communication=True)
    builder.device(0)
    return builder


def test_a_trace_draws_itself() -> None:
    page = Parsed(built().build()._repr_html_())
    assert page.open == []
    assert "gemm.json Kineto, rank 0, 5 events" in page.text
    assert "0 Test GPU (0) 30.0 us 66.7% 33.3% 0.0% 0.0%" in page.text
    assert "table rows calls 1 devices 1 kernels 2 threads 1" in page.text
    widths = [float(value) for tag, key, value in page.attributes if (tag, key) == ("rect", "width") and value != "10"]
    assert widths == [pytest.approx(666.67), pytest.approx(333.33)]


def test_a_trace_without_devices_has_no_bar() -> None:
    builder = TraceBuilder(rank=None)
    builder.op("aten::mm", 0, 5)
    page = Parsed(trace_html(builder.build()))
    assert "svg" not in page.tags
    assert "rank" not in page.text
    assert "slices 1" in page.text


def test_a_run_names_the_pass_its_memory_is_of() -> None:
    detail = TraceBuilder()
    detail.op("aten::mm", 0, 5)
    detail.row("memory", time_ns=1, thread=0, op=0, on_device=False, ordinal=-1, address=64, bytes=512, action=0)
    builder = built()
    builder.detail = detail.build()
    text = Parsed(trace_html(builder.build())).text
    assert "memory (detail pass) 1 threads 1" in text
    assert "slices" not in text, "the trace's own tables are the trace's own"
    assert "memory 1 slices 1" in Parsed(trace_html(builder.detail)).text


def test_an_analysis_draws_itself() -> None:
    page = Parsed(analysis()._repr_html_())
    assert page.open == []
    for words in (
        "~/traces/trace.json.gz (kineto, rank 0, 120,345 events)", "17.0% of step", "host_sync: .item() makes",
        "host_sync: nonzero", "input_stall, launch_bound", "Not evaluated", "exposed_communication",
        "12 of 120,345 events",
    ):  # fmt: skip
        assert words in page.text, words


def test_a_notebook_cell_stays_short() -> None:
    findings = tuple(
        Finding(
            subject=str(n), title=f"finding {n}", severity="low", basis="measured", advice="", cost_ns_per_step=n * MS
        )
        for n in range(MOST_CELL_FINDINGS + 7)
    )
    text = analysis_html(analysis(outcomes=(Outcome(rule="r", status="flagged", findings=findings),)))
    assert text.count("r: finding") == MOST_CELL_FINDINGS
    assert "7 more findings" in text


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_are_words(name: str) -> None:
    page, plain = Parsed(analysis_html(hostile(name))), Parsed(analysis_html(hostile("plain")))
    assert page.open == []
    assert set(page.tags) <= set(plain.tags) | {"code", "wbr"}
    assert {(tag, key) for tag, key, _ in page.attributes} <= {(tag, key) for tag, key, _ in plain.attributes}
    assert set(Parsed(trace_html(built(name).build())).tags) <= {*Parsed(trace_html(built().build())).tags, "code"}


def test_traces() -> None:
    found = perfscope.compare(gpu_run(), [gpu_run(item=True)])
    assert isinstance(found, Comparison)
    assert found.headline == "regression"
    assert found.causes[0].place == "train.py:11"
    plain = compared([gpu_run()], [gpu_run(item=True)])
    assert (found.metrics, found.findings, found.notes) == (plain.metrics, plain.findings, plain.notes)


@pytest.mark.corpus
def test_paths(corpus: Path) -> None:
    trace = corpus / "kineto" / "TraceLens__h100_bert-small.json.gz"
    assert perfscope.compare(trace, str(trace)).headline == "not judged"  # no step without a profiler


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a side holds no trace"):
        perfscope.compare([], gpu_run())
    with pytest.raises(DataError):
        perfscope.compare(tmp_path / "none", gpu_run())


def test_faces() -> None:
    found = perfscope.compare(gpu_run(), gpu_run(item=True))
    assert found.document()["schema"] == "perfscope.compare/1"
    assert "### perfscope: 🔴 regression" in found.markdown()
    assert found.html().startswith("<!DOCTYPE html>")


def test_it_draws_itself() -> None:
    drawn = perfscope.compare(gpu_run(), gpu_run(item=True))._repr_html_()
    page = Parsed(drawn)
    assert page.open == []
    for said in ("Regression", "host syncs per step 0 → 1", "train.py:11", "1 new, 1 unchanged"):
        assert said in page.text, said
    assert "script" not in page.tags


def test_a_hostile_name_stays_text() -> None:
    drawn = perfscope.compare(gpu_run(), gpu_run(file="<img src=x>'\"", item=True))._repr_html_()
    assert "img" not in Parsed(drawn).tags


def test_an_analysis_prints_the_text_report() -> None:
    judged = analysis()
    assert str(judged) == text.render(judged)
    assert len(repr(judged)) < 200


def test_findings_as_a_frame() -> None:
    judged = analysis()
    frame = judged.to_frame()
    assert list(frame.columns) == list(FRAME_COLUMNS)
    assert list(zip(frame["rule"], frame["title"], strict=True)) == [
        (rule, item.title) for rule, item in judged.findings()
    ]
    assert frame["cost_ns_per_step"].sum() == sum(item.cost_ns_per_step or 0 for _, item in judged.findings())
    assert frame["line"].isna().sum() == sum(item.where.line is None for _, item in judged.findings())
    none = analysis(outcomes=()).to_frame()
    assert none.empty
    assert none.dtypes.equals(frame.dtypes)


def test_silenced_findings_are_in_the_frame_when_asked_for() -> None:
    outcomes = tuple(
        replace(outcome, findings=tuple(replace(finding, silenced="on purpose") for finding in outcome.findings))
        for outcome in analysis().outcomes
    )
    judged = analysis(outcomes=outcomes)
    assert judged.to_frame().empty
    frame = judged.to_frame(silenced=True)
    assert len(frame) == len(judged.silenced()) > 0
    assert set(frame["silenced"]) == {"on purpose"}
