"""The change of a step in parts: exact sums, and the text of each part."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.compare.runs.account import Account, claim_first, in_parts, innermost
from perfscope.analyzers.compare.runs.change import PartChange, StepChange, account_change, step_change, time_change
from perfscope.analyzers.compare.runs.keys import (
    Key,
    Level,
    align,
    same_files,
    without_counters,
    without_numbers,
    without_tiles,
    work_class,
)
from perfscope.analyzers.compare.runs.window import compared_window, cut, inside, without
from perfscope.analyzers.time import least_computing, warm_accounts
from perfscope.model.intervals import Intervals, by_largest_remainder, union
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.compare.runs import gpu_run, host_run


def key(op: str = "aten::mm", line: int = 10, **more: str) -> Key:
    held = {"file": "train.py", "function": "loss", "work": "gemm", "shapes": "[[4]]"} | more
    return Key(kind="compute", op=op, line=line, **held)


KEYS = st.builds(
    key,
    op=st.sampled_from(["aten::mm", "aten::add", ""]),
    line=st.integers(1, 6),
    work=st.sampled_from(["gemm_1", "gemm_2", "triton_poi_fused_add_0", "x"]),
    shapes=st.sampled_from(["[[4]]", "[[8]]"]),
    file=st.sampled_from(["train.py", "a/model.py", "b/model.py"]),
)


@given(st.sets(KEYS, max_size=12), st.sets(KEYS, max_size=12))
def test_every_key_is_in_exactly_one_match(base: set[Key], head: set[Key]) -> None:
    matches = align(base, head)
    assert sorted(map(repr, (one for match in matches for one in match.base))) == sorted(map(repr, base))
    assert sorted(map(repr, (one for match in matches for one in match.head))) == sorted(map(repr, head))
    assert all((match.level is None) == (not match.base or not match.head) for match in matches)


@given(st.sets(KEYS, max_size=12))
def test_a_trace_against_itself_matches_exactly(keys: set[Key]) -> None:
    assert all(match.level is Level.SAME and match.base == match.head for match in align(keys, keys))


@pytest.mark.parametrize(
    ("base", "head", "level"),
    [
        (key(), key(), Level.SAME),
        (key(work="triton_poi_fused_add_3"), key(work="triton_poi_fused_add_7"), Level.RENAMED),
        (key(op="graph_cpp_fused_mul_1"), key(op="graph_cpp_fused_mul_2"), Level.RENAMED),
        (key(work="void k<float, 4>(int)"), key(work="void k<float, 8>(long)"), Level.RENAMED),
        (key(line=10), key(line=40), Level.SAME),
        (key(work="ampere_sgemm"), key(work="cutlass_80_gemm"), Level.OTHER_KERNEL),
        (key(shapes="[[4]]"), key(shapes="[[8]]"), Level.OTHER_SHAPES),
        (key(file="a.py"), key(file="b.py"), Level.SAME_OP),
        (key(op="aten::add", work="add"), key(op="triton_poi_fused_add", work="triton_poi_fused_add"), Level.FUSED),
        (key(op="aten::mm", file="a.py"), key(op="aten::addmm", file="b.py"), Level.SAME_CLASS),
        (key(op="aten::mm", file="a.py"), key(op="aten::sort", file="b.py", work="sort"), None),
    ],
)  # fmt: skip
def test_level(base: Key, head: Key, level: Level | None) -> None:
    assert {match.level for match in align([base], [head])} == {level}


def test_lines_that_moved_keep_their_partners_and_the_inserted_one_is_new() -> None:
    base = [key("aten::sort", 5), key(line=10), key(line=11), key(line=12)]
    head = [key("aten::sort", 6), key(line=11), key(line=12), key(line=13), key("aten::item", 14, work="item")]
    matches = align(base, head)
    assert {(m.base[0].line, m.head[0].line) for m in matches if m.base and m.head} == {
        (5, 6), (10, 11), (11, 12), (12, 13),
    }  # fmt: skip
    assert [m.head[0].op for m in matches if not m.base] == ["aten::item"]


def test_several_kernels_against_a_fused_one_are_one_match() -> None:
    base = [key(f"aten::{name}", 41, work=f"{name}_kernel") for name in ("add", "mul", "silu")]
    (match,) = align(base, [key("CompiledFunction", 41, work="triton_poi_fused_add_mul_silu_0")])
    assert (len(match.base), len(match.head), match.level) == (3, 1, Level.FUSED)


def test_idle_time_of_another_cause_is_another_part() -> None:
    base = Key(kind="idle", cause="launch", op="aten::mm")
    head = Key(kind="idle", cause="sync", op="aten::mm")
    assert all(match.level is None for match in align([base], [head]))


def test_files_of_another_checkout() -> None:
    base, head = {"/a/src/m.py", "/a/test/m.py", "n.py"}, {"/b/src/m.py", "/b/test/m.py", "n.py"}
    assert same_files(base, head) == {"/a/src/m.py": "/b/src/m.py", "/a/test/m.py": "/b/test/m.py"}
    assert same_files({"/a/m.py"}, {"/b/m.py", "/c/m.py"}) == {}


def test_names_without_what_changes_from_build_to_build() -> None:
    assert without_numbers("triton_poi_fused_add_relu_12") == "triton_poi_fused_add_relu"
    assert without_numbers("loop_add_fusion.3.remat2") == "loop_add_fusion"
    assert without_numbers("k_0f3a9c1e22") == without_numbers("k_99aa8b7c6d")
    assert without_numbers("void at::native::elementwise<4, Add<float>>(int, Add)") == "at::native::elementwise"
    assert without_tiles("ampere_sgemm_128x64_tn") == without_tiles("ampere_sgemm_64x32_tn")
    assert without_numbers("deadbeef") == "deadbeef"
    graphs = [f"## Call CompiledFxGraph f{letter * 25}2{letter * 25} ##" for letter in "ab"]
    assert len(set(map(without_counters, graphs))) == 1
    assert without_counters("PjitFunction(step)") == "PjitFunction(step)"
    assert without_counters("an_ordinary_word_of_more_than_forty_letters_in_all") == (
        "an_ordinary_word_of_more_than_forty_letters_in_all"
    )


def test_classes_of_work() -> None:
    assert work_class("void flash::flash_fwd_kernel<F>") == "attention"
    assert work_class("Cijk_Ailk_Bljk_SB_MT64x64") == "matrix product"
    assert work_class("ncclDevKernel_AllReduce") == "collective"
    assert work_class("zzz") == "other"


def divided(trace: Trace) -> Account:
    return in_parts(trace, least_computing(trace.fact(warm_accounts)))


def change(base: Trace, head: Trace) -> StepChange:
    found = step_change(divided(base), divided(head))
    found.check()
    assert sum(part.delta_ns for part in found.parts) == found.delta_ns
    return found


def part(found: StepChange, name: str) -> PartChange:
    (one,) = [part for part in found.parts if part.key().name() == name]
    return one


class TestAccount:
    def test_a_device_is_accounted_for_to_the_nanosecond(self) -> None:
        held = divided(gpu_run())
        by_kind: dict[str, int] = {}
        for one in held.parts:
            by_kind[one.key.kind] = by_kind.get(one.key.kind, 0) + one.own_ns
        assert by_kind == {"compute": 320_000, "idle": 1_680_000}
        assert sum(by_kind.values()) == held.total_ns

    def test_the_host_is_accounted_for_where_there_is_no_device(self) -> None:
        held = divided(host_run(item=True))
        own = {one.key.name(): one.own_ns for one in held.parts}
        assert (own["aten::mm"], own["aten::item"], own["aten::add"]) == (120_000, 15_000, 30_000)
        assert sum(own.values()) == held.total_ns == 300_000

    def test_of_two_streams_no_moment_counts_twice(self) -> None:
        made = TraceBuilder()
        made.step(0, 0, 100)
        made.launched("a", 5, 10, 60, correlation=1)
        made.launched("b", 6, 40, 90, correlation=2, stream=8)
        made.launched("all_reduce", 7, 50, 95, correlation=3, stream=9, communication=True)
        held = divided(made.build())
        own = {one.key.work: one.own_ns for one in held.parts}
        assert (own["a"], own["b"], own["all_reduce"]) == (50_000, 30_000, 5_000)
        assert sum(own.values()) == 100_000

    def test_without_time_there_are_no_parts(self) -> None:
        assert divided(TraceBuilder(recorded=frozenset()).build()).parts == ()


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
    (one,) = [one for one in found.parts if one.cause == "sync"]
    assert one.key().place() == "train.py:11"
    assert one.key().name() == "idle: waited for the device (aten::item)"
    assert one.delta_ns == 80_000


def test_time_of_the_host_is_divided_by_cause_and_ops_count_once() -> None:
    made = TraceBuilder(recorded=frozenset({"host_ops", "steps"}))
    made.step(0, 0, 100)
    made.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5, 45)
    made.op("aten::stack", 10, 40)
    made.op("aten::mm", 50, 90)
    found = {(one.key.cause, one.key.name()): (one.own_ns, one.calls) for one in divided(made.build()).parts}
    assert found["compute", "aten::mm"] == (40_000, 1)
    assert found["compute", "aten::stack"] == (0, 1)
    assert found["input", "waited for input (aten::stack)"] == (30_000, 0)
    assert sum(ns for ns, _ in found.values()) == 100_000


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
        assert [one.head_ns - one.base_ns for one in found.ranks] == [0, 10_000, 50_000]

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


ROWS = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 30)), min_size=1, max_size=12)


@given(ROWS, ROWS)
def test_rows_and_what_is_left_sum(free_rows: list[tuple[int, int]], rows: list[tuple[int, int]]) -> None:
    free = union([start for start, _ in free_rows], [start + length for start, length in free_rows])
    starts = np.array([start for start, _ in rows], np.int64)
    ends = starts + np.array([length for _, length in rows], np.int64)
    own, left = claim_first(free, starts, ends)
    assert own.sum() + left.total() == free.total()
    assert (own >= 0).all()
    assert (own <= ends - starts).all()


def test_of_overlapping_rows_the_first_has_the_shared_time() -> None:
    own, left = claim_first(union([0], [100]), np.array([20, 10]), np.array([60, 40]))
    assert own.tolist() == [20, 30]
    assert left.total() == 50


def test_a_moment_goes_to_the_innermost_span_and_through_spans_that_are_not_wanted() -> None:
    made = TraceBuilder()
    made.op("outer", 0, 100)
    made.python("f.py(1): f", 10, 50)
    made.op("inner", 20, 40)
    trace = made.build()
    slices = trace.rows["slices"]
    ops = slices["kind"] == 0
    own, left = innermost(trace, 0, ops).claim(union([0], [120_000]))
    assert {trace.text(int(slices["name"][row])): ns for row, ns in own.items()} == {
        "outer": 80_000, "inner": 20_000,
    }  # fmt: skip
    assert left.total() == 20_000


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.integers(1, 50))
def test_shares_sum_to_the_rounded_whole(amounts: list[int], divisor: int) -> None:
    shares = by_largest_remainder(np.array(amounts, np.int64), divisor)
    whole = sum(amounts)
    assert shares.sum() == (2 * whole + divisor) // (2 * divisor)
    assert all(abs(share - amount / divisor) < 1 for share, amount in zip(shares.tolist(), amounts, strict=True))


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=8).map(
    lambda found: union([start for start, _ in found], [start + length for start, length in found])
)


def moments(spans: Intervals) -> set[int]:
    return {moment for start, end in zip(spans.starts.tolist(), spans.ends.tolist(), strict=True)
            for moment in range(start, end)}  # fmt: skip


@given(SPANS, SPANS)
def test_cut_and_without_are_those_of_sets(first: Intervals, second: Intervals) -> None:
    assert moments(cut(first, second)) == moments(first) & moments(second)
    assert moments(without(first, second)) == moments(first) - moments(second)


@given(SPANS, st.lists(st.integers(-5, 90), max_size=10))
def test_inside_is_that_of_sets(spans: Intervals, times: list[int]) -> None:
    held = moments(spans)
    assert inside(spans, np.array(times, np.int64)).tolist() == [time in held for time in times]


def test_window_is_the_steps() -> None:
    window = compared_window(gpu_run(steps=3))
    assert (window.total_ns, window.steps, window.per) == (3_000_000, 3, "step")


def test_window_holds_the_work_that_the_last_step_left_running() -> None:
    made = TraceBuilder()
    made.step(0, 0, 100)
    made.launched("late", 90, 95, 160, correlation=1)
    made.launched("of_nobody", 110, 200, 300, correlation=2)
    window = compared_window(made.build())
    assert window.total_ns == 160_000
    assert window.host.total() == 100_000


def test_without_steps_it_is_the_span_of_the_devices() -> None:
    made = TraceBuilder()
    made.op("aten::mm", 0, 500)
    made.launched("k", 10, 100, 150, correlation=1)
    made.launched("k", 20, 200, 260, correlation=2)
    window = compared_window(made.build())
    assert (window.total_ns, window.steps, window.per) == (160_000, 1, "trace")


def test_between_steps_counts_only_while_their_work_runs() -> None:
    made = TraceBuilder()
    made.step(0, 0, 100)
    made.step(1, 300, 400)
    made.launched("late", 90, 95, 160, correlation=1)
    made.launched("between", 200, 210, 220, correlation=2)
    window = compared_window(made.build())
    assert window.total_ns == 260_000
    assert (window.spans.starts // 1000).tolist() == [0, 300]
    assert (window.spans.ends // 1000).tolist() == [160, 400]


def stepped(busy_us: int, *, steps: int = 3, device: bool = True) -> Trace:
    """Steps of 1 ms; the device works for ``busy_us`` of each (the host's op lasts as long)."""
    made = TraceBuilder()
    for number in range(steps):
        at = 1000 * number
        made.step(number, at, at + 1000)
        if device:
            made.launched("gemm", at + 10, at + 20, at + 20 + busy_us, correlation=number + 1)
        made.op("aten::mm", at + 5, at + 15 if device else at + 5 + busy_us)
    return made.build()


def test_the_mean_step_by_cause_sums_on_both_sides() -> None:
    account = account_change(change(stepped(400), stepped(600, steps=2)))
    assert account is not None
    assert (account.base_ns, account.head_ns, account.on_host) == (1_000_000, 1_000_000, False)
    assert account.problem() is None
    assert (account.causes["compute"].base_ns, account.causes["compute"].head_ns) == (400_000, 600_000)
    assert all(amount.base_ns or amount.head_ns for amount in account.causes.values())


def test_the_host_is_not_compared_with_a_device_by_cause() -> None:
    assert account_change(change(stepped(400, device=False), stepped(400))) is None
    alone = account_change(change(stepped(400, device=False), stepped(500, device=False)))
    assert alone is not None
    assert alone.on_host
    assert alone.causes["compute"].head_ns == 500_000
