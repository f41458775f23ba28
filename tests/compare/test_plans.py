"""Plans of two commits compared: counts, gates, and collectives."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from perfscope.analyzers.compare.programs.exchange import plan_exchanges
from perfscope.analyzers.compare.programs.gates import program_gate
from perfscope.analyzers.compare.programs.plan import plan_change, plan_fingerprint, plan_totals
from perfscope.analyzers.compare.programs.row import ProgramChange, ProgramRow
from perfscope.analyzers.compare.programs.units import (
    EXCHANGED,
    PLAN_BLOCKED,
    PLAN_BLOCKED_WIRE,
    PLAN_BREAKS,
    PLAN_BYTES,
    PLAN_COLLECTIVES,
    PLAN_LAUNCHES,
    PLAN_WIRE,
)
from perfscope.analyzers.compare.runs.comparison import Comparison, compare
from perfscope.analyzers.plans.time import plan_works
from perfscope.analyzers.readers.load import load_one
from perfscope.model.documents.torch_plan import PlannedCollective, StepMemory, StepPosition
from perfscope.model.torch_plan import LoadedPlan, PlannedKernel, PlannedRefusal, totals
from perfscope.model.trace import Trace
from tests.compare.programs import MIB, OPS, compiled_job, ddp_all_reduce, job, on_target, only_plan, program_all_reduce
from tests.conftest import REPOSITORY
from tests.plans.build import graph, kernel, plan, product, trace_of


def test_more_launches_and_bytes_are_a_regression(tmp_path: Path) -> None:
    sides = [graph(kernel(), product()), graph(kernel(), kernel("triton_poi_fused_mul_1"), kernel(), product())]
    first, last = ([trace_of(tmp_path / str(number), plan(side))] for number, side in enumerate(sides))
    found = compare(first, last)
    assert found.headline == "regression"
    assert found.gates(("programs",))
    assert found.programs[0].modelled_ns is not None


Rows = tuple[PlannedCollective, ...]

GATES = ("collective-bytes", "blocking-collectives")

BUCKETS: Rows = (
    ddp_all_reduce(2, OPS),
    ddp_all_reduce(4, OPS),
    ddp_all_reduce(6, OPS),
    ddp_all_reduce(OPS, OPS, bytes=8 * MIB),
)
"""DistributedDataParallel during its backward: nothing runs during the last one."""

GATHERS: Rows = tuple(
    program_all_reduce(
        at,
        at + 1,
        kind="all-gather",
        op="c10d._allgather_base_",
        by="fully_shard",
        after=StepPosition(ops=at - 1),
        line=20,
    )
    for at in range(1, 5)
)
"""`fully_shard`: each layer's runs during the previous layer."""


def wire_bytes(size: int, world: int = 8) -> int:
    """Bytes of an all-reduce on the wire: twice (n-1)/n of its size."""
    return 2 * (world - 1) * size // world


def compare_jobs(folder: Path, base: Rows, head: Rows) -> Comparison:
    return compare([job(folder / "base", *base)], [job(folder / "head", *head)])


def failed(found: Comparison) -> list[str]:
    return [line.partition(":")[0] for line in found.gates(GATES)]


def only_program(found: Comparison) -> ProgramChange:
    (change,) = found.programs
    for name, (before, after) in change.totals.items():
        assert sum(row.delta(name) for row in change.rows) == after - before
    return change


def only_row(found: Comparison) -> ProgramRow:
    (row,) = only_program(found).rows
    return row


def test_an_all_reduce_that_was_added_is_named_with_its_line(tmp_path: Path) -> None:
    new = (*BUCKETS, program_all_reduce(OPS, OPS, bytes=4, dtype="float32", line=41))
    found = compare_jobs(tmp_path, BUCKETS, new)
    row = only_row(found)
    assert (row.change, row.place, row.blocking) == ("new collective", "train.py:41", 1)
    assert row.what == "all-reduce, float32 over 8 ranks"
    assert {name: row.delta(name) for name in row.amounts} == {
        PLAN_COLLECTIVES: 1, PLAN_WIRE: wire_bytes(4), PLAN_BLOCKED: 1, PLAN_BLOCKED_WIRE: wire_bytes(4),
    }  # fmt: skip
    assert row.said[0] == "the device waits for it: no kernel can run at the same time"
    assert found.gates(("blocking-collectives",)) == (
        "blocking-collectives: 1 collective blocks now: train.py:41",
    )  # fmt: skip
    back = compare_jobs(tmp_path, new, BUCKETS)
    assert (only_row(back).change, only_row(back).is_worse, failed(back)) == ("collective gone", False, [])
    assert back.headline == "improvement"


def test_what_other_kernels_run_beside_is_new_and_does_not_block(tmp_path: Path) -> None:
    found = compare_jobs(tmp_path, BUCKETS, (*BUCKETS, program_all_reduce(1, 3, line=41)))
    assert (only_row(found).change, only_row(found).blocking) == ("new collective", 0)
    assert failed(found) == ["collective-bytes"]
    assert found.gates(("programs",)) == found.gates(("collective-bytes",))


def test_gradients_of_twice_the_bytes(tmp_path: Path) -> None:
    wide = tuple(replace(row, dtype="float32", bytes=2 * row.bytes) for row in BUCKETS)
    found = compare_jobs(tmp_path, BUCKETS, wide)
    row = only_row(found)
    assert (row.change, row.blocking) == ("type changed", 0)
    assert "4 of 8.00 MiB to 32.0 MiB, bfloat16 → 4 of 16.0 MiB to 64.0 MiB, float32" in row.said
    assert found.programs[0].totals[PLAN_WIRE] == (wire_bytes(104 * MIB), wire_bytes(208 * MIB))
    (said,) = found.gates(("collective-bytes",))
    assert said == "collective-bytes: 182 MiB → 364 MiB, +100% (more than 0.1%): train.py:30"
    back = compare_jobs(tmp_path, wide, BUCKETS)
    assert (only_row(back).change, back.headline, failed(back)) == ("type changed", "improvement", [])


def test_sums_of_every_micro_batch(tmp_path: Path) -> None:
    every = tuple(ddp_all_reduce(at, OPS, bytes=row.bytes) for at in (2, 5) for row in BUCKETS[:3])
    found = compare_jobs(tmp_path, BUCKETS[:3], every)
    row = only_row(found)
    assert (row.change, row.place) == ("new collective", "train.py:30")
    assert row.amounts[PLAN_COLLECTIVES] == (0, 3)
    assert failed(found) == ["collective-bytes"]
    back = compare_jobs(tmp_path, every, BUCKETS[:3])
    assert (only_row(back).change, back.headline) == ("collective gone", "improvement")


def test_one_bucket_for_all_has_nothing_beside_it(tmp_path: Path) -> None:
    whole = (ddp_all_reduce(OPS, OPS, bytes=104 * MIB),)
    found = compare_jobs(tmp_path, BUCKETS, whole)
    row = only_row(found)
    assert (row.change, row.blocking) == ("collective became blocking", 1)
    assert row.amounts[PLAN_BLOCKED_WIRE] == (wire_bytes(8 * MIB), wire_bytes(104 * MIB))
    assert PLAN_WIRE not in row.amounts
    assert "4 of 8.00 MiB to 32.0 MiB, bfloat16 → 1 of 104 MiB, bfloat16" in row.said
    assert failed(found) == ["blocking-collectives"]
    assert found.headline == "regression"
    back = compare_jobs(tmp_path, whole, BUCKETS)
    assert (only_row(back).change, only_row(back).is_worse) == ("exchanged in more parts", False)
    assert (back.headline, failed(back)) == ("improvement", [])


def test_more_of_them_for_the_same_bytes_is_shown_and_fails_where_launches_are_asked_for(tmp_path: Path) -> None:
    small = tuple(replace(row, bytes=row.bytes // 2) for row in BUCKETS[:3] for _ in (0, 1))
    found = compare_jobs(tmp_path, BUCKETS[:3], small)
    row = only_row(found)
    assert (row.change, row.is_worse) == ("exchanged in more parts", False)
    assert row.amounts == {PLAN_COLLECTIVES: (3, 6)}
    assert found.headline == "no change"
    assert found.gates(("programs",)) == ()
    assert found.gates(("launches",)) == (
        "launches: 3 → 6 collectives, +100% (more than 1%): train.py:30",
    )  # fmt: skip
    back = compare_jobs(tmp_path, small, BUCKETS[:3])
    assert (only_row(back).change, back.gates(("launches",))) == ("exchanged in fewer parts", ())


def test_parameters_that_nobody_uses_are_asked_about(tmp_path: Path) -> None:
    marks = ddp_all_reduce(OPS, OPS, bytes=4 * 53, dtype="int32")
    found = compare_jobs(tmp_path, BUCKETS, (*BUCKETS, marks))
    assert (only_row(found).change, only_row(found).blocking) == ("new collective", 1)
    assert only_row(found).what == "all-reduce of DistributedDataParallel, int32 over 8 ranks"


def test_buckets_that_are_cut_otherwise_beside_them(tmp_path: Path) -> None:
    small = tuple(replace(row, bytes=row.bytes // 2) for row in BUCKETS[:3] for _ in (0, 1))
    found = compare_jobs(tmp_path, BUCKETS[:3], (*small, ddp_all_reduce(OPS - 1, OPS, bytes=4 * 53, dtype="int32")))
    assert {row.change for row in only_program(found).rows} == {"exchanged in more parts", "new collective"}
    assert found.programs[0].rows[0].what.endswith(", int32 over 8 ranks")


def test_a_program_that_failed_is_named(tmp_path: Path) -> None:
    whole, part = job(tmp_path / "base", *BUCKETS), job(tmp_path / "head", *BUCKETS[:1], failure="it raised")
    found = compare([whole], [part])
    assert only_program(found).notes[0].startswith("planning of head failed: ")
    assert (only_program(found).rows, only_program(found).totals, only_program(found).identical) == ((), {}, False)
    assert found.headline != "improvement"
    assert {(lost.reason, lost.sides) for lost in found.not_looked} >= {
        ("the planning of the program failed", ("head",))
    }
    assert [gate.partition(":")[0] for gate in found.gates(("programs",))] == ["programs"]
    mended = compare([part], [whole])
    assert (mended.headline, mended.gates(("programs",))) == (found.headline, ())


def test_gathers_that_lost_what_ran_beside_them(tmp_path: Path) -> None:
    late = tuple(replace(row, after=row.at, until=row.at) for row in GATHERS)
    found = compare_jobs(tmp_path, GATHERS, late)
    row = only_row(found)
    assert (row.change, row.place, row.blocking) == ("collective became blocking", "train.py:20", 4)
    assert set(row.amounts) == {PLAN_BLOCKED, PLAN_BLOCKED_WIRE}
    assert row.said[0] == "the device waits for 4 of them: no kernel can run at the same time"
    assert found.gates(("blocking-collectives",)) == (
        "blocking-collectives: 4 collectives block now: train.py:20",
    )  # fmt: skip
    back = compare_jobs(tmp_path, late, GATHERS)
    assert (only_row(back).change, back.headline) == ("collective no longer blocks", "improvement")


def test_parameters_that_are_gathered_again_in_the_backward(tmp_path: Path) -> None:
    again = tuple(replace(row, phase="backward", line=21) for row in GATHERS)
    found = compare_jobs(tmp_path, GATHERS, (*GATHERS, *again))
    row = only_row(found)
    assert (row.change, row.place, row.phase) == ("new collective", "train.py:21", "backward")
    assert row.amounts[PLAN_WIRE] == (0, 4 * 32 * MIB * 7 // 8)
    assert failed(found) == ["collective-bytes"]


@pytest.mark.parametrize("rows", [BUCKETS, GATHERS, ()])
def test_a_job_equals_itself(tmp_path: Path, rows: Rows) -> None:
    found = compare_jobs(tmp_path, rows, rows)
    assert only_program(found).identical
    assert found.headline == "no change"
    assert found.gates((*GATES, "programs", "launches", "regression")) == ()


def test_the_code_above_it_moved(tmp_path: Path) -> None:
    base = job(tmp_path / "base", *BUCKETS, program_all_reduce(3, 5))
    lower = [replace(row, line=(row.line or 0) + 9) for row in (*BUCKETS, program_all_reduce(3, 5))]
    assert only_program(compare([base], [job(tmp_path / "moved", *lower, down=9)])).identical
    head = job(tmp_path / "head", *lower[:-1], replace(lower[-1], until=StepPosition(ops=3)), down=9)
    assert (only_row(compare([base], [head])).change, only_row(compare([base], [head])).place) == (
        "collective became blocking", "train.py:21",
    )  # fmt: skip


def test_a_group_that_grew_is_one_row(tmp_path: Path) -> None:
    found = compare_jobs(tmp_path, (program_all_reduce(3, 5, group=1),), (program_all_reduce(3, 5),))
    assert only_row(found).change == "more bytes"
    assert only_row(found).amounts == {PLAN_WIRE: (wire_bytes(32 * MIB, 2), wire_bytes(32 * MIB))}


def test_alone_in_its_group_nothing_is_sent_and_nobody_waits(tmp_path: Path) -> None:
    (row,) = plan_exchanges(only_plan(job(tmp_path, program_all_reduce(3, 3, group=2)))) or ()
    assert (row.sent, row.blocks) == (0, None)


@pytest.mark.parametrize(
    ("kind", "whole"),
    [("all-gather", 7 / 8), ("reduce-scatter", 7 / 8), ("all-to-all", 7 / 8), ("broadcast", 1.0), ("send", 1.0)],
)
def test_bytes_are_those_that_a_device_sends(tmp_path: Path, kind: Any, whole: float) -> None:
    (row,) = plan_exchanges(only_plan(job(tmp_path, program_all_reduce(3, 5, kind=kind)))) or ()
    assert row.sent == whole * 32 * MIB


def test_what_blocks_is_what_the_model_of_the_step_says(tmp_path: Path) -> None:
    for at, trace in enumerate(
        (
            job(tmp_path / "a", *BUCKETS, *GATHERS, program_all_reduce(4, None), program_all_reduce(OPS, None)),
            compiled_job(
                tmp_path / "b",
                ddp_all_reduce(0, 2),
                ddp_all_reduce(1, 1),
                outside=(program_all_reduce(0, 3), program_all_reduce(2, 2)),
            ),
        )
    ):
        (work,) = trace.fact(plan_works)
        step = work.compiled_exchanges if at else work.eager_exchanges
        found = plan_exchanges(only_plan(trace))
        assert step is not None
        assert found is not None
        assert [row.blocks is not None for row in found] == [row.blocks for row in step.rows]
        assert {row.blocks for row in step.rows} == {True, False}


class TestInsideOfGraphs:
    def test_each_run_of_a_graph_counts_and_no_kernel_is_one(self, tmp_path: Path) -> None:
        base, head = compiled_job(tmp_path / "base"), compiled_job(tmp_path / "head", ddp_all_reduce(1, 1, line=9))
        found = compare([base], [head])
        row = only_row(found)
        assert (row.change, row.place, row.blocking) == ("new collective", "train.py:9", 2)
        assert row.amounts[PLAN_WIRE] == (0, 2 * wire_bytes(32 * MIB))
        assert found.programs[0].totals[PLAN_LAUNCHES] == (4, 4)
        assert failed(found) == ["collective-bytes", "blocking-collectives"]

    def test_outside_of_them_it_counts_once(self, tmp_path: Path) -> None:
        base = compiled_job(tmp_path / "base")
        head = compiled_job(tmp_path / "head", outside=(program_all_reduce(3, 3, line=9),))
        row = only_row(compare([base], [head]))
        assert (row.change, row.amounts[PLAN_COLLECTIVES], row.blocking) == ("new collective", (0, 1), 1)


class TestModelled:
    def test_what_the_step_waits_is_said_and_is_no_amount(self, tmp_path: Path) -> None:
        change = only_program(compare_jobs(tmp_path, BUCKETS, (ddp_all_reduce(OPS, OPS, bytes=104 * MIB),)))
        assert change.rows[0].said[-1].endswith("for it by the model")
        (note,) = change.notes
        assert note.startswith("the step waits ")
        assert note.endswith(" for collectives by the model")
        assert change.modelled_ns is not None
        assert change.modelled_ns[0].low < change.modelled_ns[1].low

    def test_without_a_target_the_counts_are_the_same(self, tmp_path: Path) -> None:
        base, head = job(tmp_path / "base", *BUCKETS), job(tmp_path / "head", *BUCKETS, program_all_reduce(3, 3))
        known = only_program(compare([base], [head]))
        unknown = only_program(compare([on_target(base, None)], [on_target(head, None)]))
        assert (unknown.notes, unknown.modelled_ns) == ((), None)
        assert [row.amounts for row in unknown.rows] == [row.amounts for row in known.rows]
        assert not any("model" in text for row in unknown.rows for text in row.said)


class TestNotCompared:
    def compared(self, base: Trace, head: Trace) -> Comparison:
        found = compare([base], [head])
        assert not set(EXCHANGED) & {*only_program(found).totals}
        assert not any(set(EXCHANGED) & {*row.amounts} for row in only_program(found).rows)
        assert found.gates((*GATES, "programs", "launches", "regression")) == ()
        return found

    def test_jobs_of_other_sizes(self, tmp_path: Path) -> None:
        found = self.compared(job(tmp_path / "base", *BUCKETS), job(tmp_path / "head", *BUCKETS, *GATHERS, world=4))
        assert only_program(found).notes == (
            "collectives are not compared: base is planned as the first of 8 processes, head as the first of 4 "
            "processes",
        )
        assert [row.name for row in found.not_looked if "collective" in row.name] == ["planned collectives"]

    def test_a_side_without_processes(self, tmp_path: Path) -> None:
        found = self.compared(job(tmp_path / "base", world=0), job(tmp_path / "head", *BUCKETS))
        assert only_program(found).notes == (
            "collectives are not compared: base is planned as one process, head as the first of 8 processes",
        )  # fmt: skip

    def test_a_step_that_was_not_seen_whole(self, tmp_path: Path) -> None:
        head = job(tmp_path / "head", *BUCKETS)
        (whole,) = head.torch_plans
        assert whole.plan.processes is not None
        cut = replace(whole.plan, processes=replace(whole.plan.processes, eager=None))
        head = replace(head, torch_plans=(replace(whole, plan=cut),))
        found = self.compared(job(tmp_path / "base", *BUCKETS), head)
        assert only_program(found).notes == ("collectives are not compared: not all of head are in the plan",)

    def test_more_than_are_listed(self, tmp_path: Path) -> None:
        trace = job(tmp_path, *BUCKETS)
        plan = only_plan(trace)
        assert plan.plan.processes is not None
        more = replace(plan, plan=replace(plan.plan, processes=replace(plan.plan.processes, left=3)))
        assert plan_change(plan, more).notes == ("collectives are not compared: not all of head are in the plan",)

    def test_amounts_that_no_document_holds(self, tmp_path: Path) -> None:
        found = plan_change(
            only_plan(job(tmp_path / "base", *BUCKETS)),
            only_plan(job(tmp_path / "head", program_all_reduce(3, 5, bytes=1 << 62))),
        )
        assert (found.totals, found.rows) == ({}, ())
        assert found.notes == ("its amounts are too large to be taken apart",)

    def test_two_programs_of_one_process_say_nothing_of_it(self, tmp_path: Path) -> None:
        found = compare([job(tmp_path / "base", world=0)], [job(tmp_path / "head", world=0)])
        assert only_program(found).notes == ()
        assert not any("collective" in row.name for row in (*found.not_looked, *found.metrics))


def test_it_is_one_of_the_gates_that_hold_for_programs() -> None:
    assert {"collective-bytes", "blocking-collectives"} <= {gate.name for gate in program_gate("programs")}


FIXTURES = REPOSITORY / "fixtures" / "plans-h100"


def trace(name: str) -> Trace:
    return load_one(FIXTURES / name)


@lru_cache
def recorded_plan(name: str) -> LoadedPlan:
    (held,) = trace(name).torch_plans
    return held


def with_kernels(held: LoadedPlan, kernels: tuple[PlannedKernel, ...], **changed: object) -> LoadedPlan:
    """The plan with other kernels in its first graph."""
    first, *rest = held.plan.graphs
    fields = {"refusals": (), "kernels": kernels, **changed}
    return replace(held, plan=replace(held.plan, graphs=(replace(first, **fields), *rest)))  # type: ignore[arg-type]


def moved_lines(held: LoadedPlan, by: int) -> LoadedPlan:
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
    def held(self) -> LoadedPlan:
        return recorded_plan("attention-sdpa")

    def at(self, held: LoadedPlan) -> int:
        kernels = held.plan.graphs[0].kernels
        return next(at for at, one in enumerate(kernels) if one.kind == "reduction" and len(one.ops) == 3)

    def apart(self, held: LoadedPlan) -> LoadedPlan:
        at, kernels = self.at(held), held.plan.graphs[0].kernels
        one = kernels[at]
        first = replace(one, name="a", ops=one.ops[:2], members=one.members[:1])
        last = replace(one, name="b", ops=one.ops[2:], members=one.members[1:], read_bytes=one.written_bytes)
        refusal = PlannedRefusal(first=at, second=at + 1, reason="no shared data")
        return with_kernels(held, (*kernels[:at], first, last, *kernels[at + 1 :]), refusals=(refusal,))

    def test_it_is_said_with_its_line_and_inductors_reason(self, held: LoadedPlan) -> None:
        found = plan_change(held, self.apart(held))
        (row,) = found.rows
        kernel = held.plan.graphs[0].kernels[self.at(held)]
        assert (row.change, row.lost) == ("moved out of a fusion", 1)
        assert row.place == f"{kernel.places[0].file}:{kernel.places[0].line}"
        assert row.delta(PLAN_BYTES) == 2 * kernel.written_bytes
        assert row.delta(PLAN_LAUNCHES) == 1
        assert "inductor: no shared data" in row.said

    def test_and_back(self, held: LoadedPlan) -> None:
        (row,) = plan_change(self.apart(held), held).rows
        assert (row.change, row.lost) == ("moved into a fusion", 0)

    def test_other_names_and_lines_are_the_same_plan(self, held: LoadedPlan) -> None:
        again = moved_lines(held, 7)
        found = plan_change(held, again)
        assert found.identical
        assert plan_fingerprint(held) == plan_fingerprint(again)

    def test_the_code_above_it_moved(self, held: LoadedPlan) -> None:
        (row,) = plan_change(held, moved_lines(self.apart(held), 7)).rows
        kernel = held.plan.graphs[0].kernels[self.at(held)]
        assert (row.change, row.place) == (
            "moved out of a fusion", f"{kernel.places[0].file}:{kernel.places[0].line + 7}",
        )  # fmt: skip


@pytest.mark.parametrize("name", ["attention-naive-compiled", "attention-sdpa-adam-loop", "moe-loop"])
def test_a_recorded_plan_equals_itself(name: str) -> None:
    found = compare([trace(name)], [trace(name)])
    assert [one.identical for one in found.programs] == [True]
    assert found.gates(("programs",)) == ()
    assert found.base.kind == "planned programs"


@pytest.mark.parametrize(
    ("base", "head"),
    [("attention-sdpa", "attention-naive"), ("ssm-parallel", "ssm-scan"), ("moe-loop", "moe-index-add")],
)
def test_parts_sum_to_the_change(base: str, head: str) -> None:
    found = plan_change(recorded_plan(base), recorded_plan(head))
    sides = totals(recorded_plan(base).plan), totals(recorded_plan(head).plan)
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
    assert row.delta(PLAN_BREAKS) == plan_totals(recorded_plan("attention-branch"))[PLAN_BREAKS] > 0
    assert any(line.startswith("graph-breaks: 0 → ") for line in found.gates(("programs",)))


def test_a_plan_is_not_a_compiled_program(tmp_path: Path) -> None:
    from perfscope.model.errors import UsageError

    program = load_one(REPOSITORY / "fixtures" / "h100-programs" / "attention-naive-scan-small-none.hlo.pb.xz")
    with pytest.raises(UsageError, match="compare two of one kind"):
        compare([trace("attention-sdpa")], [program])
