"""The change of a step in parts: exact sums, and what each part says."""

from __future__ import annotations

from fractions import Fraction

import pytest

from perfscope.analyzers.compare.account import accounts
from perfscope.analyzers.compare.change import PartChange, StepChange, step_change
from perfscope.analyzers.compare.ranks import time_change
from perfscope.analyzers.trace import Trace
from tests.analyzers.compare.two_runs import gpu_run, host_run
from tests.build import TraceBuilder


def change(base: Trace, head: Trace) -> StepChange:
    found = step_change(accounts(base)[0], accounts(head)[0])
    found.check()
    assert sum(part.delta_ns for part in found.parts) == found.delta_ns
    return found


def part(found: StepChange, name: str) -> PartChange:
    (one,) = [part for part in found.parts if part.key().name() == name]
    return one


class TestAccount:
    def test_a_device_is_accounted_for_to_the_nanosecond(self) -> None:
        (held,) = accounts(gpu_run())
        by_kind: dict[str, int] = {}
        for one in held.parts:
            by_kind[one.key.kind] = by_kind.get(one.key.kind, 0) + one.own_ns
        assert by_kind == {"compute": 320_000, "idle": 1_680_000}
        assert sum(by_kind.values()) == held.total_ns

    def test_the_host_is_accounted_for_where_there_is_no_device(self) -> None:
        (held,) = accounts(host_run(item=True))
        own = {one.key.name(): one.own_ns for one in held.parts}
        assert (own["aten::mm"], own["aten::item"], own["aten::add"]) == (120_000, 15_000, 30_000)
        assert sum(own.values()) == held.total_ns == 300_000

    def test_of_two_streams_no_moment_counts_twice(self) -> None:
        made = TraceBuilder()
        made.step(0, 0, 100)
        made.launched("a", 5, 10, 60, correlation=1)
        made.launched("b", 6, 40, 90, correlation=2, stream=8)
        made.launched("all_reduce", 7, 50, 95, correlation=3, stream=9, communication=True)
        (held,) = accounts(made.build())
        own = {one.key.work: one.own_ns for one in held.parts}
        assert (own["a"], own["b"], own["all_reduce"]) == (50_000, 30_000, 5_000)
        assert sum(own.values()) == 100_000

    def test_without_time_there_is_none(self) -> None:
        assert accounts(TraceBuilder(recorded=frozenset()).build()) == ()


class TestStatus:
    def test_the_same_run_changes_in_nothing(self) -> None:
        found = change(gpu_run(), gpu_run())
        assert {one.status for one in found.parts} == {"same"}

    def test_slower_per_call(self) -> None:
        one = part(change(gpu_run(), gpu_run(slow_us=30)), "aten::mm")
        assert (one.status, one.delta_ns, one.count_ns, one.each_ns) == ("slower", 30_000, 0, 30_000)

    def test_called_more_often(self) -> None:
        base, head = (self._calls(number) for number in (2, 3))
        one = part(change(base, head), "aten::mm")
        assert (one.status, float(one.base.calls), float(one.head.calls)) == ("more calls", 2.0, 3.0)
        assert (one.delta_ns, one.count_ns, one.each_ns) == (10_000, 10_000, 0)

    def test_new_and_gone(self) -> None:
        found = change(host_run(), host_run(item=True))
        one = part(found, "aten::item")
        assert (one.status, one.delta_ns, one.count_ns) == ("new", 5_000, 5_000)
        assert one.key().place() == "model.py:13"
        back = part(change(host_run(item=True), host_run()), "aten::item")
        assert (back.status, back.delta_ns) == ("gone", -5_000)

    def test_a_lost_fusion(self) -> None:
        found = change(gpu_run(fused=True), gpu_run())
        (one,) = [one for one in found.parts if one.status == "split"]
        assert (float(one.base.calls), float(one.head.calls), one.delta_ns) == (1.0, 3.0, 35_000)
        assert one.key().place() == "train.py:12"
        (back,) = [one for one in change(gpu_run(), gpu_run(fused=True)).parts if one.status == "fused"]
        assert back.delta_ns == -35_000

    def test_a_renamed_kernel_is_no_change_of_counts(self) -> None:
        found = change(gpu_run(kernel="gemm_128x64_tn"), gpu_run(kernel="cutlass_gemm_tn<8>"))
        assert not any(one.counts_differ for one in found.parts)

    @staticmethod
    def _calls(number: int) -> Trace:
        made = TraceBuilder()
        made.step(0, 0, 100)
        for call in range(number):
            made.op("aten::mm", 5 + 4 * call, 8 + 4 * call, external_id=call)
            made.launched("gemm", 6 + 4 * call, 20 + 10 * call, 30 + 10 * call, correlation=call, external_id=call)
        return made.build()


def test_other_numbers_of_steps_are_brought_to_one_step() -> None:
    found = change(host_run(steps=3), host_run(steps=7))
    assert (found.base_ns, found.head_ns, found.delta_ns) == (100_000, 100_000, 0)
    assert {one.status for one in found.parts} == {"same"}


def test_idle_time_of_a_host_sync_is_named_with_its_line() -> None:
    found = change(gpu_run(), gpu_run(item=True))
    (one,) = [one for one in found.parts if one.kind == "idle" and "waited for the device" in one.key().work]
    assert one.key().place() == "train.py:11"
    assert one.delta_ns > 200_000


def test_the_reverse_is_the_mirror() -> None:
    there, back = change(gpu_run(), gpu_run(item=True, slow_us=7)), change(gpu_run(item=True, slow_us=7), gpu_run())
    assert there.delta_ns == -back.delta_ns
    assert sorted(one.delta_ns for one in there.parts) == sorted(-one.delta_ns for one in back.parts)


class TestRanks:
    def test_the_worst_and_the_one_in_the_middle(self) -> None:
        base = [host_rank(rank, 1.0) for rank in range(3)]
        head = [host_rank(rank, scale) for rank, scale in enumerate((1.0, 1.1, 1.5))]
        found = time_change(base, head)
        assert found is not None
        assert found.worst is not None
        assert (found.median.rank, found.worst.rank) == (1, 2)
        assert [one.delta_ns for one in found.ranks] == [0, 10_000, 50_000]

    def test_ranks_that_do_not_match_are_said(self) -> None:
        found = time_change([host_rank(0, 1.0)], [host_rank(rank, 1.0) for rank in range(2)])
        assert found is not None
        assert found.ranks == ()
        assert any("1 ranks against 2" in note for note in found.notes)

    def test_without_time_on_a_side_there_is_none(self) -> None:
        assert time_change([host_run()], [TraceBuilder(recorded=frozenset()).build()]) is None


def host_rank(rank: int, scale: float) -> Trace:
    made = TraceBuilder(rank=rank, recorded=frozenset({"host_ops", "steps"}))
    made.step(0, 0, 100 * scale)
    made.op("aten::mm", 0, 90 * scale)
    return made.build()


def test_calls_are_exact_fractions() -> None:
    found = change(host_run(steps=3), host_run(steps=3))
    assert all(isinstance(one.base.calls, Fraction) for one in found.parts)


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_rounding_never_loses_a_nanosecond(steps: int) -> None:
    made = TraceBuilder(recorded=frozenset({"host_ops", "steps"}))
    for step in range(steps):
        made.step(step, step * 10, step * 10 + 9.973)
        for number in range(5):
            made.op(f"aten::op{number}", step * 10 + number * 1.7 + 0.001, step * 10 + number * 1.7 + 1.318)
    change(made.build(), host_run())
