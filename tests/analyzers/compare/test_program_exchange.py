"""Collectives of two plans of several processes: which are new, larger, or block now, and what gates say of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.compare.comparison import Comparison, compare
from perfscope.analyzers.compare.program_exchange import plan_exchanges
from perfscope.analyzers.compare.program_gates import program_gate
from perfscope.analyzers.compare.program_plan import plan_change
from perfscope.analyzers.compare.program_row import ProgramChange, ProgramRow
from perfscope.analyzers.compare.program_units import (
    EXCHANGED,
    PLAN_BLOCKED,
    PLAN_BLOCKED_WIRE,
    PLAN_COLLECTIVES,
    PLAN_LAUNCHES,
    PLAN_WIRE,
)
from perfscope.analyzers.facts.plan_time import plan_works
from perfscope.analyzers.trace import Trace
from perfscope.profiler.aot.torch_processes_file import Moment, PlannedCollective
from tests.analyzers.compare.plan_jobs import MIB, OPS, asked, compiled_job, held, job, mine, on

Rows = tuple[PlannedCollective, ...]

GATES = ("collective-bytes", "blocking-collectives")

BUCKETS: Rows = (asked(2, OPS), asked(4, OPS), asked(6, OPS), asked(OPS, OPS, bytes=8 * MIB))
"""Of DistributedDataParallel over all of its backward: the last has nothing beside it."""

GATHERS: Rows = tuple(
    mine(at, at + 1, kind="all-gather", op="c10d._allgather_base_", by="fully_shard", after=Moment(ops=at - 1), line=20)
    for at in range(1, 5)
)
"""Of `fully_shard`: each layer's beside the layer before it."""


def sent(size: int, world: int = 8) -> int:
    """Of an all-reduce: twice (n-1)/n of it."""
    return 2 * (world - 1) * size // world


def both(folder: Path, base: Rows, head: Rows) -> Comparison:
    return compare([job(folder / "base", *base)], [job(folder / "head", *head)])


def failed(found: Comparison) -> list[str]:
    return [line.partition(":")[0] for line in found.gates(GATES)]


def one(found: Comparison) -> ProgramChange:
    (change,) = found.programs
    for name, (before, after) in change.totals.items():
        assert sum(row.delta(name) for row in change.rows) == after - before
    return change


def only(found: Comparison) -> ProgramRow:
    (row,) = one(found).rows
    return row


def test_an_all_reduce_that_was_added_is_named_with_its_line(tmp_path: Path) -> None:
    new = (*BUCKETS, mine(OPS, OPS, bytes=4, dtype="float32", line=41))
    found = both(tmp_path, BUCKETS, new)
    row = only(found)
    assert (row.change, row.place, row.blocking) == ("new collective", "train.py:41", 1)
    assert row.what == "all-reduce, float32 over 8 ranks"
    assert {name: row.delta(name) for name in row.amounts} == {
        PLAN_COLLECTIVES: 1, PLAN_WIRE: sent(4), PLAN_BLOCKED: 1, PLAN_BLOCKED_WIRE: sent(4),
    }  # fmt: skip
    assert row.said[0] == "the device waits for it: no kernel can run beside it"
    assert found.gates(("blocking-collectives",)) == (
        "blocking-collectives: 1 collective blocks and did not: train.py:41",
    )  # fmt: skip
    back = both(tmp_path, new, BUCKETS)
    assert (only(back).change, only(back).is_worse, failed(back)) == ("collective gone", False, [])
    assert back.headline == "improvement"


def test_what_other_kernels_run_beside_is_new_and_does_not_block(tmp_path: Path) -> None:
    found = both(tmp_path, BUCKETS, (*BUCKETS, mine(1, 3, line=41)))
    assert (only(found).change, only(found).blocking) == ("new collective", 0)
    assert failed(found) == ["collective-bytes"]
    assert found.gates(("programs",)) == found.gates(("collective-bytes",))


def test_gradients_of_twice_the_bytes(tmp_path: Path) -> None:
    wide = tuple(replace(row, dtype="float32", bytes=2 * row.bytes) for row in BUCKETS)
    found = both(tmp_path, BUCKETS, wide)
    row = only(found)
    assert (row.change, row.blocking) == ("type changed", 0)
    assert "4 of 8.00 MiB to 32.0 MiB, bfloat16 → 4 of 16.0 MiB to 64.0 MiB, float32" in row.said
    assert found.programs[0].totals[PLAN_WIRE] == (sent(104 * MIB), sent(208 * MIB))
    (said,) = found.gates(("collective-bytes",))
    assert said == "collective-bytes: 182 MiB → 364 MiB, +100% (more than 0.1%): train.py:30"
    back = both(tmp_path, wide, BUCKETS)
    assert (only(back).change, back.headline, failed(back)) == ("type changed", "improvement", [])


def test_sums_of_every_micro_batch(tmp_path: Path) -> None:
    every = tuple(asked(at, OPS, bytes=row.bytes) for at in (2, 5) for row in BUCKETS[:3])
    found = both(tmp_path, BUCKETS[:3], every)
    row = only(found)
    assert (row.change, row.place) == ("new collective", "train.py:30")
    assert row.amounts[PLAN_COLLECTIVES] == (0, 3)
    assert failed(found) == ["collective-bytes"]
    back = both(tmp_path, every, BUCKETS[:3])
    assert (only(back).change, back.headline) == ("collective gone", "improvement")


def test_one_bucket_for_all_has_nothing_beside_it(tmp_path: Path) -> None:
    whole = (asked(OPS, OPS, bytes=104 * MIB),)
    found = both(tmp_path, BUCKETS, whole)
    row = only(found)
    assert (row.change, row.blocking) == ("collective became blocking", 1)
    assert row.amounts[PLAN_BLOCKED_WIRE] == (sent(8 * MIB), sent(104 * MIB))
    assert PLAN_WIRE not in row.amounts
    assert "4 of 8.00 MiB to 32.0 MiB, bfloat16 → 1 of 104 MiB, bfloat16" in row.said
    assert failed(found) == ["blocking-collectives"]
    assert found.headline == "regression"
    back = both(tmp_path, whole, BUCKETS)
    assert (only(back).change, only(back).is_worse) == ("exchanged in more parts", False)
    assert (back.headline, failed(back)) == ("improvement", [])


def test_more_of_them_for_the_same_bytes_is_shown_and_fails_where_launches_are_asked_for(tmp_path: Path) -> None:
    small = tuple(replace(row, bytes=row.bytes // 2) for row in BUCKETS[:3] for _ in (0, 1))
    found = both(tmp_path, BUCKETS[:3], small)
    row = only(found)
    assert (row.change, row.is_worse) == ("exchanged in more parts", False)
    assert row.amounts == {PLAN_COLLECTIVES: (3, 6)}
    assert found.headline == "no change"
    assert found.gates(("programs",)) == ()
    assert found.gates(("launches",)) == (
        "launches: 3 → 6 collectives, +100% (more than 1%): train.py:30",
    )  # fmt: skip
    back = both(tmp_path, small, BUCKETS[:3])
    assert (only(back).change, back.gates(("launches",))) == ("exchanged in fewer parts", ())


def test_parameters_that_nobody_uses_are_asked_about(tmp_path: Path) -> None:
    marks = asked(OPS, OPS, bytes=4 * 53, dtype="int32")
    found = both(tmp_path, BUCKETS, (*BUCKETS, marks))
    assert (only(found).change, only(found).blocking) == ("new collective", 1)
    assert only(found).what == "all-reduce of DistributedDataParallel, int32 over 8 ranks"


def test_buckets_that_are_cut_otherwise_beside_them(tmp_path: Path) -> None:
    small = tuple(replace(row, bytes=row.bytes // 2) for row in BUCKETS[:3] for _ in (0, 1))
    found = both(tmp_path, BUCKETS[:3], (*small, asked(OPS - 1, OPS, bytes=4 * 53, dtype="int32")))
    assert {row.change for row in one(found).rows} == {"exchanged in more parts", "new collective"}
    assert found.programs[0].rows[0].what.endswith(", int32 over 8 ranks")


def test_a_program_that_failed_is_named(tmp_path: Path) -> None:
    whole, part = job(tmp_path / "base", *BUCKETS), job(tmp_path / "head", *BUCKETS[:1], failure="it raised")
    found = compare([whole], [part])
    assert one(found).notes[0].startswith("head failed while it was planned: ")
    assert (one(found).rows, one(found).totals, one(found).identical) == ((), {}, False)
    assert found.headline != "improvement"
    assert {(lost.reason, lost.sides) for lost in found.not_looked} >= {
        ("the program failed while it was planned", ("head",))
    }
    assert [gate.partition(":")[0] for gate in found.gates(("programs",))] == ["programs"]
    mended = compare([part], [whole])
    assert (mended.headline, mended.gates(("programs",))) == (found.headline, ())


def test_gathers_that_lost_what_ran_beside_them(tmp_path: Path) -> None:
    late = tuple(replace(row, after=row.at, until=row.at) for row in GATHERS)
    found = both(tmp_path, GATHERS, late)
    row = only(found)
    assert (row.change, row.place, row.blocking) == ("collective became blocking", "train.py:20", 4)
    assert set(row.amounts) == {PLAN_BLOCKED, PLAN_BLOCKED_WIRE}
    assert row.said[0] == "the device waits for 4 of them: no kernel can run beside it"
    assert found.gates(("blocking-collectives",)) == (
        "blocking-collectives: 4 collectives block and did not: train.py:20",
    )  # fmt: skip
    back = both(tmp_path, late, GATHERS)
    assert (only(back).change, back.headline) == ("collective no longer blocks", "improvement")


def test_parameters_that_are_gathered_again_in_the_backward(tmp_path: Path) -> None:
    again = tuple(replace(row, phase="backward", line=21) for row in GATHERS)
    found = both(tmp_path, GATHERS, (*GATHERS, *again))
    row = only(found)
    assert (row.change, row.place, row.phase) == ("new collective", "train.py:21", "backward")
    assert row.amounts[PLAN_WIRE] == (0, 4 * 32 * MIB * 7 // 8)
    assert failed(found) == ["collective-bytes"]


@pytest.mark.parametrize("rows", [BUCKETS, GATHERS, ()])
def test_each_is_itself(tmp_path: Path, rows: Rows) -> None:
    found = both(tmp_path, rows, rows)
    assert one(found).identical
    assert found.headline == "no change"
    assert found.gates((*GATES, "programs", "launches", "regression")) == ()


def test_the_code_above_it_moved(tmp_path: Path) -> None:
    base = job(tmp_path / "base", *BUCKETS, mine(3, 5))
    lower = [replace(row, line=(row.line or 0) + 9) for row in (*BUCKETS, mine(3, 5))]
    assert one(compare([base], [job(tmp_path / "moved", *lower, down=9)])).identical
    head = job(tmp_path / "head", *lower[:-1], replace(lower[-1], until=Moment(ops=3)), down=9)
    assert (only(compare([base], [head])).change, only(compare([base], [head])).place) == (
        "collective became blocking", "train.py:21",
    )  # fmt: skip


def test_a_group_that_grew_is_one_row(tmp_path: Path) -> None:
    found = both(tmp_path, (mine(3, 5, group=1),), (mine(3, 5),))
    assert only(found).change == "more bytes"
    assert only(found).amounts == {PLAN_WIRE: (sent(32 * MIB, 2), sent(32 * MIB))}


def test_alone_in_its_group_nothing_is_sent_and_nobody_waits(tmp_path: Path) -> None:
    (row,) = plan_exchanges(held(job(tmp_path, mine(3, 3, group=2)))) or ()
    assert (row.sent, row.blocks) == (0, None)


@pytest.mark.parametrize(
    ("kind", "whole"),
    [("all-gather", 7 / 8), ("reduce-scatter", 7 / 8), ("all-to-all", 7 / 8), ("broadcast", 1.0), ("send", 1.0)],
)
def test_bytes_are_those_that_a_device_sends(tmp_path: Path, kind: Any, whole: float) -> None:
    (row,) = plan_exchanges(held(job(tmp_path, mine(3, 5, kind=kind)))) or ()
    assert row.sent == whole * 32 * MIB


def test_what_blocks_is_what_the_model_of_the_step_says(tmp_path: Path) -> None:
    for at, trace in enumerate((
        job(tmp_path / "a", *BUCKETS, *GATHERS, mine(4, None), mine(OPS, None)),
        compiled_job(tmp_path / "b", asked(0, 2), asked(1, 1), outside=(mine(0, 3), mine(2, 2))),
    )):  # fmt: skip
        (work,) = trace.fact(plan_works)
        step = work.compiled_exchanges if at else work.eager_exchanges
        found = plan_exchanges(held(trace))
        assert step is not None
        assert found is not None
        assert [row.blocks is not None for row in found] == [row.blocks for row in step.rows]
        assert {row.blocks for row in step.rows} == {True, False}


class TestInsideOfGraphs:
    def test_each_run_of_a_graph_counts_and_no_kernel_is_one(self, tmp_path: Path) -> None:
        base, head = compiled_job(tmp_path / "base"), compiled_job(tmp_path / "head", asked(1, 1, line=9))
        found = compare([base], [head])
        row = only(found)
        assert (row.change, row.place, row.blocking) == ("new collective", "train.py:9", 2)
        assert row.amounts[PLAN_WIRE] == (0, 2 * sent(32 * MIB))
        assert found.programs[0].totals[PLAN_LAUNCHES] == (4, 4)
        assert failed(found) == ["collective-bytes", "blocking-collectives"]

    def test_outside_of_them_it_counts_once(self, tmp_path: Path) -> None:
        base = compiled_job(tmp_path / "base")
        head = compiled_job(tmp_path / "head", outside=(mine(3, 3, line=9),))
        row = only(compare([base], [head]))
        assert (row.change, row.amounts[PLAN_COLLECTIVES], row.blocking) == ("new collective", (0, 1), 1)


class TestModelled:
    def test_what_the_step_waits_is_said_and_is_no_amount(self, tmp_path: Path) -> None:
        change = one(both(tmp_path, BUCKETS, (asked(OPS, OPS, bytes=104 * MIB),)))
        assert change.rows[0].said[-1].endswith("for it by the model")
        (note,) = change.notes
        assert note.startswith("the step waits ")
        assert note.endswith(" for collectives by the model")
        assert change.modelled_ns is not None
        assert change.modelled_ns[0] < change.modelled_ns[1]

    def test_without_a_target_the_counts_are_the_same(self, tmp_path: Path) -> None:
        base, head = job(tmp_path / "base", *BUCKETS), job(tmp_path / "head", *BUCKETS, mine(3, 3))
        known = one(compare([base], [head]))
        unknown = one(compare([on(base, None)], [on(head, None)]))
        assert (unknown.notes, unknown.modelled_ns) == ((), None)
        assert [row.amounts for row in unknown.rows] == [row.amounts for row in known.rows]
        assert not any("model" in text for row in unknown.rows for text in row.said)


class TestNotCompared:
    def compared(self, base: Trace, head: Trace) -> Comparison:
        found = compare([base], [head])
        assert not set(EXCHANGED) & {*one(found).totals}
        assert not any(set(EXCHANGED) & {*row.amounts} for row in one(found).rows)
        assert found.gates((*GATES, "programs", "launches", "regression")) == ()
        return found

    def test_jobs_of_other_sizes(self, tmp_path: Path) -> None:
        found = self.compared(job(tmp_path / "base", *BUCKETS), job(tmp_path / "head", *BUCKETS, *GATHERS, world=4))
        assert one(found).notes == (
            "collectives are not compared: base is planned as the first of 8 processes, head as the first of 4 "
            "processes",
        )
        assert [row.name for row in found.not_looked if "collective" in row.name] == ["planned collectives"]

    def test_a_side_without_processes(self, tmp_path: Path) -> None:
        found = self.compared(job(tmp_path / "base", world=0), job(tmp_path / "head", *BUCKETS))
        assert one(found).notes == (
            "collectives are not compared: base is planned as one process, head as the first of 8 processes",
        )  # fmt: skip

    def test_a_step_that_was_not_seen_whole(self, tmp_path: Path) -> None:
        head = job(tmp_path / "head", *BUCKETS)
        (whole,) = head.torch_plans
        assert whole.plan.processes is not None
        cut = replace(whole.plan, processes=replace(whole.plan.processes, eager=None))
        head.torch_plans = (replace(whole, plan=cut),)
        found = self.compared(job(tmp_path / "base", *BUCKETS), head)
        assert one(found).notes == ("collectives are not compared: not all of head are in the plan",)

    def test_more_than_are_listed(self, tmp_path: Path) -> None:
        trace = job(tmp_path, *BUCKETS)
        plan = held(trace)
        assert plan.plan.processes is not None
        more = replace(plan, plan=replace(plan.plan, processes=replace(plan.plan.processes, left=3)))
        assert plan_change(plan, more).notes == ("collectives are not compared: not all of head are in the plan",)

    def test_amounts_that_no_document_holds(self, tmp_path: Path) -> None:
        found = plan_change(
            held(job(tmp_path / "base", *BUCKETS)), held(job(tmp_path / "head", mine(3, 5, bytes=1 << 62)))
        )  # fmt: skip
        assert (found.totals, found.rows) == ({}, ())
        assert found.notes == ("its amounts are too large to be taken apart",)

    def test_two_programs_of_one_process_say_nothing_of_it(self, tmp_path: Path) -> None:
        found = compare([job(tmp_path / "base", world=0)], [job(tmp_path / "head", world=0)])
        assert one(found).notes == ()
        assert not any("collective" in row.name for row in (*found.not_looked, *found.metrics))


def test_it_is_one_of_the_gates_that_hold_for_programs() -> None:
    assert {"collective-bytes", "blocking-collectives"} <= {gate.name for gate in program_gate("programs")}
