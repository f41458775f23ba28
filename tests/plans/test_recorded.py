"""The recorded plans of the PyTorch workloads for an H100: a defect is named with its line, its twin is clean of it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import jsonschema
import pytest

from perfscope.analyzers.engine import Analysis, analyze
from perfscope.analyzers.plans.time import PlanWork, plan_works
from perfscope.analyzers.readers.load import load_all
from perfscope.dashboards.report import render
from perfscope.model.documents.torch_plan import MAX_BYTES, fingerprint_of
from perfscope.model.finding import Finding
from perfscope.model.torch_plan import totals

RECORDED = Path(__file__).resolve().parents[2] / "fixtures" / "plans-h100"
WORKLOADS = Path(__file__).resolve().parents[2] / "perfscope" / "workloads"
DEFECTS = [
    ("attention-naive", "unfused_attention", "attention-sdpa"),
    ("attention-naive-compiled", "unfused_attention", "attention-sdpa"),
    ("moe-loop", "graph_break", "moe-index-add"),
    ("moe-loop", "host_sync", "moe-index-add"),
    ("ssm-scan", "sequential_scan", "ssm-parallel"),
    ("attention-sdpa-adam-loop", "unfused_optimizer", "attention-sdpa"),
    ("attention-sdpa-item", "host_sync", "attention-sdpa"),
    ("attention-branch", "graph_break", "attention-branch-twin"),
    ("attention-branch", "host_sync", "attention-branch-twin"),
]


@cache
def judged(name: str) -> Analysis:
    return analyze(load_all(RECORDED / name))


@cache
def work_of(name: str) -> PlanWork:
    (trace,) = load_all(RECORDED / name)
    (work,) = trace.fact(plan_works)
    return work


def findings(name: str, rule: str) -> tuple[Finding, ...]:
    outcome = judged(name)[rule]
    assert outcome.status != "abstained", outcome.reason
    return outcome.findings


@pytest.mark.parametrize(("defect", "rule", "twin"), DEFECTS)
def test_the_defect_is_found_at_its_line_and_the_twin_is_clean(defect: str, rule: str, twin: str) -> None:
    found = findings(defect, rule)
    assert found
    assert findings(twin, rule) == ()
    for finding in found:
        assert finding.advice
        assert finding.where.file is not None
        assert finding.where.line is not None
        lines = (WORKLOADS / Path(finding.where.file).name).read_text().splitlines()
        near = "\n".join(lines[finding.where.line - 2 : finding.where.line])
        assert "defect" in near or "optimizer.step" in near


@pytest.mark.parametrize("rule", ["unfused_attention", "sequential_scan", "unfused_optimizer"])
def test_costs_are_modelled_and_less_than_the_step(rule: str) -> None:
    names = {name for name, one, _ in DEFECTS if one == rule}
    for name in names:
        found = findings(name, rule)
        assert found
        for finding in found:
            assert finding.basis == "modelled"
            assert finding.cost_ns_per_step is not None
            work = work_of(name)
            whole = work.eager or work.inside
            assert 0 < finding.cost_ns_per_step < whole.step.high


def test_scores_that_are_stored_are_most_of_what_attention_moves() -> None:
    (finding,) = findings("attention-naive", "unfused_attention")
    scores = 2 * 8 * 16 * 1024 * 1024 * 2  # layers, batch, heads, length squared, bfloat16
    assert finding.cost_bytes is not None
    assert finding.cost_bytes > 8 * scores
    naive, fused = (totals(work_of(name).held.plan) for name in ("attention-naive", "attention-sdpa"))
    assert naive.bytes - fused.bytes > 4 * scores
    assert (naive.attentions, fused.attentions) == (0, 4)


def test_compiling_takes_fewer_launches_than_running_eagerly() -> None:
    for name in ("attention-naive", "ssm-scan", "ssm-parallel", "moe-index-add"):
        work = work_of(name)
        assert work.eager is not None
        assert work.compiled is not None
        assert work.compiled.launches < work.eager.launches


def test_a_program_and_its_compiled_form_have_the_same_graphs() -> None:
    eager, compiled = (work_of(name).held.plan for name in ("attention-naive", "attention-naive-compiled"))
    assert (eager.compiled_by, compiled.compiled_by) == ("perfscope", "program")
    assert eager.graphs == compiled.graphs


@pytest.mark.parametrize("folder", sorted(path.name for path in RECORDED.iterdir()))
def test_recordings_are_whole_and_say_where_they_are_from(folder: str) -> None:
    plan = work_of(folder).held.plan
    assert plan.complete
    assert plan.fingerprint == fingerprint_of(plan)
    assert "perfscope compile --target h100" in (RECORDED / folder / "provenance.txt").read_text()
    assert sum(path.stat().st_size for path in (RECORDED / folder).rglob("*") if path.is_file()) < 100_000 < MAX_BYTES


@pytest.mark.parametrize("form", ["text", "markdown", "html", "json"])
def test_reports_call_it_planned(form: str) -> None:
    text = render(judged("attention-naive"), form)
    assert "not measured" in text
    assert "attention.py" in text
    assert str(Path.home()) not in text


@pytest.mark.parametrize("name", ["attention-naive", "attention-branch", "moe-loop"])
def test_the_json_report_keeps_to_its_schema(name: str) -> None:
    schema = json.loads((Path(__file__).resolve().parents[2] / "docs" / "report-schema.json").read_text())
    document = json.loads(render(judged(name), "json"))
    jsonschema.validate(document, schema)
    (plan,) = document["plans"]["plans"]
    assert plan["known_by"] == "planned"
    assert plan["totals"]["kernels"] == sum(one["kernels"] * one["calls"] for one in plan["graphs"])


@pytest.mark.parametrize("name", sorted(folder.name for folder in RECORDED.iterdir() if folder.is_dir()))
def test_the_peak_of_a_recorded_plan_is_what_its_holders_hold(name: str) -> None:
    plan = work_of(name).held.plan
    assert plan.memory is not None
    assert not plan.memory.uncounted
    for step in (plan.memory.eager, plan.memory.planned):
        assert step is not None
        assert sum(one.bytes for one in step.holders) + step.left_bytes == step.peak_bytes
        assert step.start_bytes < step.peak_bytes < 80 * 10**9
        assert {"parameter", "optimizer_state", "activation"} <= {one.category for one in step.holders}
    assert judged(name)["oom_near"].status == "clean"
    assert sum(graph.saved_bytes for graph in plan.graphs if graph.direction == "forward") > 0


def test_written_out_attention_holds_its_scores_at_the_peak() -> None:
    """Scores and softmax of 2 layers and 16 heads over 1,024 x 1,024 positions: what attention keeps at its lines."""
    memory = work_of("attention-naive").held.plan.memory
    assert memory is not None
    assert memory.eager is not None
    (largest,) = (one for one in memory.eager.holders[:1])
    assert (largest.category, largest.op) == ("activation", "aten._softmax.default")
    assert largest.file == "perfscope/workloads/attention.py"
