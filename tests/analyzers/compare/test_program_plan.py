"""Plans of torch.compile for an H100, compared kernel by kernel: those of the workloads, and changed ones."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from perfscope.analyzers.compare.comparison import compare
from perfscope.analyzers.compare.program_plan import plan_change, plan_fingerprint, plan_totals
from perfscope.analyzers.compare.program_units import PLAN_BREAKS, PLAN_BYTES, PLAN_LAUNCHES
from perfscope.analyzers.load import load_one
from perfscope.analyzers.torch_plan import HeldPlan, PlannedKernel, PlannedRefusal, totals
from perfscope.analyzers.trace import Trace
from perfscope.profiler.aot.torch_memory_file import StepMemory
from tests.conftest import REPOSITORY

FIXTURES = REPOSITORY / "fixtures" / "plans-h100"


def trace(name: str) -> Trace:
    return load_one(FIXTURES / name)


@lru_cache
def plan(name: str) -> HeldPlan:
    (held,) = trace(name).torch_plans
    return held


def with_kernels(held: HeldPlan, kernels: tuple[PlannedKernel, ...], **changed: object) -> HeldPlan:
    """The plan with other kernels in its first graph."""
    first, *rest = held.plan.graphs
    fields = {"refusals": (), "kernels": kernels, **changed}
    return replace(held, plan=replace(held.plan, graphs=(replace(first, **fields), *rest)))  # type: ignore[arg-type]


def moved_lines(held: HeldPlan, by: int) -> HeldPlan:
    """The plan of the same code further down, its kernels named otherwise."""

    def moved(one: PlannedKernel) -> PlannedKernel:
        return replace(one, name=f"{one.name}9", places=tuple(replace(at, line=at.line + by) for at in one.places))

    files = {at.file for graph in held.plan.graphs for one in graph.kernels for at in one.places}

    def lower(step: StepMemory | None) -> StepMemory | None:
        if step is None:
            return None
        rows = (
            replace(one, line=one.line + by) if one.file in files and one.line is not None else one
            for one in step.holders
        )
        return replace(step, holders=tuple(rows))

    graphs = tuple(replace(graph, kernels=tuple(map(moved, graph.kernels))) for graph in held.plan.graphs)
    memory = held.plan.memory
    if memory is not None:
        memory = replace(memory, eager=lower(memory.eager), planned=lower(memory.planned))
    return replace(held, plan=replace(held.plan, graphs=graphs, memory=memory))


class TestOneKernelOfMany:
    """A kernel that computes two ops is taken apart: what is between them is written and read."""

    @pytest.fixture
    def held(self) -> HeldPlan:
        return plan("attention-sdpa")

    def at(self, held: HeldPlan) -> int:
        kernels = held.plan.graphs[0].kernels
        return next(at for at, one in enumerate(kernels) if one.kind == "reduction" and len(one.ops) == 3)

    def apart(self, held: HeldPlan) -> HeldPlan:
        at, kernels = self.at(held), held.plan.graphs[0].kernels
        one = kernels[at]
        first = replace(one, name="a", ops=one.ops[:2], members=one.members[:1])
        last = replace(one, name="b", ops=one.ops[2:], members=one.members[1:], read_bytes=one.written_bytes)
        refusal = PlannedRefusal(first=at, second=at + 1, reason="no shared data")
        return with_kernels(held, (*kernels[:at], first, last, *kernels[at + 1 :]), refusals=(refusal,))

    def test_it_is_said_with_its_line_and_inductors_reason(self, held: HeldPlan) -> None:
        found = plan_change(held, self.apart(held))
        (row,) = found.rows
        kernel = held.plan.graphs[0].kernels[self.at(held)]
        assert (row.change, row.lost) == ("moved out of a fusion", 1)
        assert row.place == f"{kernel.places[0].file}:{kernel.places[0].line}"
        assert row.delta(PLAN_BYTES) == 2 * kernel.written_bytes
        assert row.delta(PLAN_LAUNCHES) == 1
        assert "inductor: no shared data" in row.said

    def test_and_back(self, held: HeldPlan) -> None:
        (row,) = plan_change(self.apart(held), held).rows
        assert (row.change, row.lost) == ("moved into a fusion", 0)

    def test_other_names_and_lines_are_the_same_plan(self, held: HeldPlan) -> None:
        again = moved_lines(held, 7)
        found = plan_change(held, again)
        assert found.identical
        assert plan_fingerprint(held) == plan_fingerprint(again)

    def test_the_code_above_it_moved(self, held: HeldPlan) -> None:
        (row,) = plan_change(held, moved_lines(self.apart(held), 7)).rows
        kernel = held.plan.graphs[0].kernels[self.at(held)]
        assert (row.change, row.place) == (
            "moved out of a fusion", f"{kernel.places[0].file}:{kernel.places[0].line + 7}",
        )  # fmt: skip


@pytest.mark.parametrize("name", sorted(path.parent.name for path in FIXTURES.glob("*/compile.json")))
def test_each_is_itself(name: str) -> None:
    found = compare([trace(name)], [trace(name)])
    assert [one.identical for one in found.programs] == [True]
    assert found.gates(("programs",)) == ()
    assert found.base.kind == "planned programs"


@pytest.mark.parametrize(
    ("base", "head"),
    [("attention-sdpa", "attention-naive"), ("ssm-parallel", "ssm-scan"), ("moe-loop", "moe-index-add")],
)
def test_parts_sum_to_the_change(base: str, head: str) -> None:
    found = plan_change(plan(base), plan(head))
    sides = totals(plan(base).plan), totals(plan(head).plan)
    assert found.totals[PLAN_BYTES] == (sides[0].bytes, sides[1].bytes)
    assert found.totals[PLAN_LAUNCHES] == (sides[0].kernels, sides[1].kernels)
    for name, (before, after) in found.totals.items():
        assert sum(row.delta(name) for row in found.rows) == after - before


def test_attention_that_is_written_out() -> None:
    found = compare([trace("attention-sdpa")], [trace("attention-naive")])
    said = found.gates(("programs",))
    assert [line.partition(":")[0] for line in said] == ["lost-fusions", "hbm-bytes", "peak"]
    assert all("perfscope/workloads/attention.py:3" in line for line in said)
    assert found.programs[0].modelled_ns is not None


def test_a_branch_on_data_breaks_the_graph() -> None:
    found = compare([trace("attention-branch-twin")], [trace("attention-branch")])
    (change,) = found.programs
    (row,) = [row for row in change.rows if row.change == "new graph break"]
    assert row.place.startswith("perfscope/workloads/compile_defects.py:")
    assert row.delta(PLAN_BREAKS) == plan_totals(plan("attention-branch"))[PLAN_BREAKS] > 0
    assert any(line.startswith("graph-breaks: 0 → ") for line in found.gates(("programs",)))


def test_a_plan_is_not_a_compiled_program(tmp_path: Path) -> None:
    from perfscope.profiler.errors import AskedWronglyError

    program = load_one(REPOSITORY / "fixtures" / "h100-programs" / "attention-naive-scan-small-none.hlo.pb.xz")
    with pytest.raises(AskedWronglyError, match="compare two of one kind"):
        compare([trace("attention-sdpa")], [program])
