"""Peaks of plans: read back, judged against the target, compared, told in every report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.compare.program_gates import gates_not_met, program_gate
from perfscope.analyzers.compare.program_plan import plan_change
from perfscope.analyzers.compare.program_units import PLAN_PEAK
from perfscope.analyzers.finding import AbstainError
from perfscope.analyzers.plan_section import plan_section
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.torch_plan import TorchPlan
from perfscope.analyzers.torch_plan_memory import as_written, by_category
from perfscope.dashboards.reports.html_plan import plan_card
from perfscope.dashboards.reports.plan_markdown import plan_details
from perfscope.dashboards.reports.plan_rows import plan_views
from perfscope.profiler.aot.torch_memory_file import MemoryHolder, PlanMemory, StepMemory
from perfscope.profiler.aot.torch_plan_file import read_plan
from tests.analyzers.plan_parts import graph, kernel, plan, trace_of, written

GIB = 1 << 30


def memory(activations: int, *, line: int = 7) -> PlanMemory:
    holders = (
        MemoryHolder(category="activation", bytes=activations, blocks=4, file="train.py", line=line, op="aten.mm"),
        MemoryHolder(category="parameter", bytes=10 * GIB, blocks=9),
        MemoryHolder(category="activation", bytes=2 * GIB, blocks=1, file="train.py", line=9),
    )
    step = StepMemory(
        peak_bytes=activations + 13 * GIB, requested_bytes=activations, start_bytes=10 * GIB, phase="backward",
        op="aten.mul", file="train.py", line=8, graph="0/0 backward", holders=holders, left_bytes=GIB, left_blocks=50,
    )  # fmt: skip
    return PlanMemory(eager=replace(step, graph=None), planned=step, uncounted=("graph 1/0 has branches",))


def planned(activations: int = 20 * GIB, **changes: object) -> TorchPlan:
    return plan(graph(kernel()), memory=memory(activations), **changes)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    folder = written(tmp_path, planned())
    assert read_plan(folder / "plans" / "00.train.json").memory == memory(20 * GIB)


def test_categories_sum_to_the_peak() -> None:
    step = as_written(planned())
    assert step is not None
    rows = by_category(step)
    assert [row.category for row in rows] == ["activation", "parameter"]
    assert rows[0].most.line == 7
    assert sum(row.bytes for row in rows) + step.left_bytes == step.peak_bytes


@pytest.mark.parametrize(
    ("activations", "severity", "said"),
    [(20, None, ""), (60, "medium", "of 79.1 GiB"), (80, "high", "more than H100 SXM has")],
)
def test_oom_near_judges_the_planned_peak(tmp_path: Path, activations: int, severity: str | None, said: str) -> None:
    rule = load_rule("oom_near")
    assert rule.plan is not None
    found = list(rule.plan(trace_of(tmp_path, planned(activations * GIB))))
    assert [one.severity for one in found] == ([severity] if severity else [])
    if found:
        assert said in found[0].title
        assert found[0].basis == "modelled"
        assert (found[0].where.file, found[0].where.line) == ("train.py", 8)


def test_what_no_plan_can_tell_is_not_called_healthy(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, plan(graph(kernel())))
    for name in ("oom_near", "peak_owner", "missing_remat"):
        rule = load_rule(name)
        assert rule.plan is not None
        with pytest.raises(AbstainError):
            list(rule.plan(trace))


def test_a_higher_peak_is_told_by_its_lines_and_fails_the_gate(tmp_path: Path) -> None:
    base, head = (
        trace_of(tmp_path / name, planned(size * GIB)).torch_plans[0] for name, size in (("base", 20), ("head", 22))
    )
    change = plan_change(base, head)
    assert change.totals[PLAN_PEAK] == (33 * GIB, 35 * GIB)
    (row,) = [row for row in change.rows if PLAN_PEAK in row.amounts]
    assert (row.place, row.change, row.delta(PLAN_PEAK)) == ("train.py:7", "more live at the peak", 2 * GIB)
    (said,) = gates_not_met([change], program_gate("peak"))
    assert "train.py:7" in said
    assert not list(gates_not_met([plan_change(head, base)], program_gate("peak")))
    assert plan_change(base, base).identical


def test_against_a_plan_without_memory_nothing_is_said_of_it(tmp_path: Path) -> None:
    base = trace_of(tmp_path / "base", plan(graph(kernel()))).torch_plans[0]
    head = trace_of(tmp_path / "head", planned()).torch_plans[0]
    assert PLAN_PEAK not in plan_change(base, head).totals


def test_every_report_says_peak_holders_and_whether_it_fits(tmp_path: Path) -> None:
    section = plan_section([trace_of(tmp_path, planned(80 * GIB))])
    assert not section.problems
    (held,), (view,) = section.plans, plan_views(section)
    assert held.fits is False
    assert [dict(row)["fits"] for row in view.peaks] == ["no", "no"]
    assert [dict(row)["at the peak"] for row in view.holders] == ["activation", "parameter", "others"]
    assert dict(view.holders[0])["mostly at"] == "train.py:7"
    for text in (plan_details(view), plan_card(view)):
        assert "93.0 GiB" in text
        assert "train.py:7" in text
    assert any("not in it" in note for note in view.notes)


def test_an_earlier_plan_says_that_it_knows_no_peak(tmp_path: Path) -> None:
    (view,) = plan_views(plan_section([trace_of(tmp_path, plan(graph(kernel())))]))
    assert not view.peaks
    assert any("earlier perfscope" in note for note in view.notes)
