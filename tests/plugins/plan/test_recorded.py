"""Recordings and plans: assumptions narrowed by a run, and a run next to its plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.__main__ import run
from perfscope.analyzers.devices import parse_target
from perfscope.analyzers.readers import load_all
from perfscope.model.errors import DataError
from perfscope.plugins.plan.assemble import Chosen, plan_document
from perfscope.plugins.plan.assumptions import scenarios
from perfscope.plugins.plan.calibrate import BEYOND, Narrowed, _ends, _hidden, exchange_category, narrowed_by
from perfscope.plugins.plan.check import check
from perfscope.plugins.plan.document import dump
from perfscope.plugins.plan.search import Space, search
from tests.build import TraceBuilder
from tests.plugins.plan.problems import problem
from tests.ranks.build import collective

FEW = Space(fixed={"pipeline": 1, "context": 1}, micro_batches=(1,), policies=("none",))
QWEN = "kineto/TraceLens__h100_qwen1.5-0.5b.json.gz"


def test_ends_hold_eight_tenths_of_the_time() -> None:
    found = _ends("products", [(0.0, 5), (0.2, 45), (0.5, 45), (3.0, 5)])
    assert found == Narrowed(assumption="products", low=0.2, high=0.5, observed=4)


def test_narrowed_assumptions_leave_fewer_scenarios() -> None:
    whole, narrow = scenarios(), scenarios({"products": (0.25, 0.25)})
    assert len(narrow.rows) - 1 == (len(whole.rows) - 1) // 2
    assert "products" in narrow.fixed
    assert set(narrow.at("products")) == {0.25}


@pytest.mark.parametrize(
    ("operation", "group", "wanted"),
    [
        ("all_gather", "mesh_fsdp", "weights hidden"),
        ("all_reduce", "default_pg", "weights hidden"),
        ("all_gather", None, "weights hidden"),
        ("all_gather", "mesh_tp", "tensor hidden"),
        ("all_to_all", None, "tokens hidden"),
        ("send", "mesh_pp", "sends hidden"),
        ("send", "cp", "tokens hidden"),
        ("all_reduce", "my_group", None),
        ("send_recv", None, None),  # NCCL's kernel for sends and for all-to-all
    ],
)
def test_an_exchange_belongs_to_the_assumption_of_its_group(operation: str, group: str | None, wanted: str) -> None:
    assert exchange_category(operation, group) == wanted


def test_recorded_steps_narrow_what_is_hidden() -> None:
    """Ten gathers of 10 us per step: nothing hidden in the first step, half of each in the second."""
    build = TraceBuilder()
    for step, covered in enumerate((0, 5)):
        begin = 1_000 * step
        build.step(step, begin, begin + 900)
        for number in range(10):
            at = begin + 50 + 40 * number
            collective(build, at, at + 10, operation="all_gather")
            build.kernel("gemm", at + 10 - covered, at + 30)
    (found,) = _hidden([build.build()])
    assert (found.assumption, found.observed) == ("weights hidden", 20)
    assert (found.low, found.high) == (pytest.approx(1.0), pytest.approx(2.0))  # 50% hidden, and nothing
    rows = scenarios({found.assumption: (found.low, found.high)})
    assert set(rows.hidden("weights hidden")[1:].round(6)) == {0.5, 0.0}


@pytest.mark.corpus
def test_products_of_another_program_narrow_the_step(corpus: Path) -> None:
    traces = load_all(corpus / QWEN)
    (found,) = [one for one in narrowed_by(traces, parse_target("h100x8")) if one.assumption == "products"]
    assert BEYOND[0] <= found.low < found.high <= BEYOND[1]
    assert found.observed > 100
    wide = search(problem(), FEW, 0.1).front[0]
    from msgspec.structs import replace

    case = replace(problem(), scenarios=scenarios({"products": (found.low, found.high)}))
    narrow = search(case, FEW, 0.1).front[0]
    assert narrow.high - narrow.low != wide.high - wide.low
    with pytest.raises(DataError, match="the recording is of H100 SXM, the plan for A100 SXM 80GB"):
        narrowed_by(traces, parse_target("a100x8"))


@pytest.mark.corpus
def test_a_run_lies_next_to_its_plan(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = problem()
    document = plan_document(case, search(case, FEW, 0.1), Chosen(headroom=0.1))
    rows = {row.part: row for row in check(document.candidates[0], load_all(corpus / QWEN))}
    parts = [row.measured_ns for part, row in rows.items() if part != "step"]
    assert rows["step"].measured_ns == sum(parts) > 0
    file = tmp_path / "plan.json"
    file.write_bytes(dump(document))
    assert run(["plan", "--check", str(corpus / QWEN), "--plan", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "Planned and measured" in printed
    assert run(["plan", "--check", str(corpus / QWEN), "--plan", str(file), "--mesh", "tensor=3"]) == 2
    assert "the plan has no such mesh" in capsys.readouterr().err
