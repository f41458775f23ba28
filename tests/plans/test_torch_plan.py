"""Plans are read completely or refused in one line; their counts match their content."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from perfscope.analyzers.compare.programs.gates import gates_not_met, program_gate
from perfscope.analyzers.compare.programs.plan import plan_change
from perfscope.analyzers.compare.programs.units import PLAN_PEAK
from perfscope.analyzers.doubts import CONVERTED
from perfscope.analyzers.engine import analyze
from perfscope.analyzers.readers.compiled import read_plan_folder
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.sections.programs import plan_section
from perfscope.dashboards.report.renderers.html import section_html
from perfscope.dashboards.report.renderers.markdown import section_markdown
from perfscope.dashboards.report.sections.plan import memory_tables, plan_sections
from perfscope.model.documents.torch_plan import (
    MemoryHolder,
    PlanBreak,
    PlanMemory,
    StepMemory,
    fingerprint_of,
    read_plan,
)
from perfscope.model.errors import DataError
from perfscope.model.finding import AbstainError
from perfscope.model.torch_plan import PlannedRefusal, TorchPlan, by_category, memory_as_run, totals
from tests.plans.build import PLACE, graph, kernel, plan, product, trace_of, write_run

BREAK = """Graph break in user code at train.py:9
Graph Break Reason: Dynamic shape operator
  Explanation: Operator `aten.nonzero.default`'s output shape depends on input Tensor data.
  Hint: Enable tracing.
  Developer debug context: aten.nonzero.default

 For more details about this graph break, please visit: https://meta-pytorch.github.io/x/gb/gb0036.html

User code traceback:
  File "train.py", line 9, in forward
    rows = torch.where(mask)
"""


def test_a_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    held = plan(graph(kernel(), product()), optimizers=("AdamW",))
    (again,) = read_plan_folder(write_run(tmp_path, held)).torch_plans
    assert again.plan == replace(held, fingerprint=fingerprint_of(held))


def test_a_packed_plan_is_read_too(tmp_path: Path) -> None:
    file = write_run(tmp_path, plan(graph(kernel()))) / "plans" / "00.train.json"
    file.with_name("00.train.json.gz").write_bytes(gzip.compress(file.read_bytes()))
    file.unlink()
    assert len(read_plan_folder(tmp_path).torch_plans[0].plan.graphs) == 1


def test_the_fingerprint_is_of_what_was_planned_and_of_nothing_else() -> None:
    held = plan(graph(kernel()))
    assert fingerprint_of(held) == fingerprint_of(replace(held, target="a100", versions={"torch": "9"}))
    assert fingerprint_of(held) != fingerprint_of(plan(graph(kernel(read_bytes=1))))


def test_totals_count_a_graph_as_often_as_it_runs() -> None:
    held = plan(graph(kernel(), product(), calls=3), graph(kernel(), direction="backward"))
    found = totals(held)
    assert (found.kernels, found.triton_kernels, found.extern_kernels, found.products) == (7, 4, 3, 3)
    assert found.bytes == 4 * 3_000_000 + 3 * (6 << 20)
    assert found.flops == 3 * 2 * 1024**3


def test_breaks_are_taken_apart(tmp_path: Path) -> None:
    said = PlanBreak(compile_id="0/0", function="forward", place=PLACE, text=BREAK)
    trace = read_plan_folder(write_run(tmp_path, plan(breaks=(said,))))
    ((function, found),) = trace.torch_plans[0].breaks
    assert (function, found.reason, found.doc_id) == ("forward", "Dynamic shape operator", "gb0036")
    assert found.place is not None
    assert found.place.line == 9


def test_advice_on_an_onnx_model_is_for_the_program_it_was_exported_from(tmp_path: Path) -> None:
    said = PlanBreak(compile_id="0/0", function="forward", place=PLACE, text=BREAK)

    def advice(source: Literal["", "onnx"]) -> str:
        trace = trace_of(tmp_path / (source or "torch"), plan(graph(kernel()), breaks=(said,), converted_from=source))
        ((_, finding),) = analyze(trace, rules=["graph_break"]).findings()
        return finding.advice

    assert advice("onnx") == f"{CONVERTED} {advice('')}"


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1", b"\x1f\x8b\x08", b'{"schema":"perfscope.torch_plan/2"}', b"\xff\xfe"]
)
def test_what_is_no_plan_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "00.train.json"
    file.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_plan(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_a_refusal_of_a_kernel_that_is_not_there_is_refused(tmp_path: Path) -> None:
    held = plan(graph(kernel(), refusals=(PlannedRefusal(first=0, second=9, reason="x"),)))
    with pytest.raises(DataError, match="names kernel 9"):
        read_plan_folder(write_run(tmp_path, held))


def test_a_damaged_plan_beside_a_good_one_is_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path, plan(graph(kernel())))
    (folder / "plans" / "01.other.json").write_text("{")
    trace = read_plan_folder(folder)
    assert len(trace.torch_plans) == 1
    assert any("plans/01.other.json was not read" in note for note in trace.source.notes)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no plan is in it"):
        read_plan_folder(tmp_path)


@pytest.mark.parametrize("name", ["../../secret", "/etc/passwd", "a\\b", "absent.opgraph.json.gz"])
def test_ops_are_read_from_beside_the_plan_only(tmp_path: Path, name: str) -> None:
    trace = read_plan_folder(write_run(tmp_path, plan(graph(kernel()), eager_file=name)))
    assert trace.torch_plans[0].eager is None
    assert any("read" in note for note in trace.source.notes)


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
    folder = write_run(tmp_path, planned())
    assert read_plan(folder / "plans" / "00.train.json").memory == memory(20 * GIB)


def test_categories_sum_to_the_peak() -> None:
    step = memory_as_run(planned())
    assert step is not None
    rows = by_category(step)
    assert [row.category for row in rows] == ["activation", "parameter"]
    assert rows[0].most.line == 7
    assert sum(row.bytes for row in rows) + step.left_bytes == step.peak_bytes


@pytest.mark.parametrize(
    ("activations", "severity", "said"),
    [(20, None, ""), (60, "medium", "of 79.1 GiB"), (80, "high", "more than there is")],
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
    (held,), (view,) = section.plans, plan_sections(section)
    assert held.fits is False
    peaks, holders = memory_tables(held)
    assert peaks.column("fits") == ("no", "no")
    assert holders.column("at the peak") == ("activation", "parameter", "others")
    assert holders.column("mostly at")[0] == "train.py:7"
    for text in (section_markdown(view), section_html(view)):
        assert "93.0 GiB" in text
        assert "train.py:7" in text
    assert any("not in it" in note for note in view.texts())


def test_an_earlier_plan_says_that_it_knows_no_peak(tmp_path: Path) -> None:
    section = plan_section([trace_of(tmp_path, plan(graph(kernel())))])
    assert not any(table.rows for table in memory_tables(section.plans[0]))
    assert any("earlier perfscope" in note for note in plan_sections(section)[0].texts())
