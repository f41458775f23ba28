"""Compiled programs explained by instruction: built ones, and those that XLA made of the workloads for an H100."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from perfscope.analyzers.compare.programs.diff import program_change
from perfscope.analyzers.compare.programs.gates import DEFAULT, ProgramGate, gates_not_met, program_gate
from perfscope.analyzers.compare.programs.keys import aligned, longest_rising
from perfscope.analyzers.compare.programs.row import ProgramChange, ProgramRow
from perfscope.analyzers.compare.programs.units import BYTES, FLOPS, LAUNCHES, PEAK, RECOMPUTED, WIRE
from perfscope.analyzers.compare.runs.comparison import Comparison, compare
from perfscope.analyzers.devices.target_text import parse_target
from perfscope.analyzers.hlo.cost.module import module_cost
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.readers.load import load_one
from perfscope.commands.compare.outputs import check_gates, own_gates
from perfscope.model.errors import UsageError
from perfscope.model.trace import Trace
from tests.compare.programs import (
    SIZE,
    before_optimization,
    fused_program,
    gathers,
    loops,
    matmul_program,
    split_program,
)
from tests.conftest import REPOSITORY
from tests.hlo_build import hlo_module, hlo_trace

FIXTURES = REPOSITORY / "fixtures" / "h100-programs"


def only_row(change: ProgramChange) -> ProgramRow:
    (row,) = change.rows
    return row


def test_other_names_and_lines_are_the_same_program() -> None:
    found = program_change(
        fused_program(layers=3), fused_program(layers=3, shift=7, suffix="z", file="elsewhere/model.py")
    )
    assert found.identical
    assert found.rows == ()
    assert found.base_fingerprint == found.head_fingerprint


class TestAFusionThatIsLost:
    def test_the_row_names_what_moved_and_what_it_costs(self) -> None:
        row = only_row(program_change(fused_program(), split_program()))
        assert (row.change, row.what, row.place) == ("moved out of a fusion", "exp", "model.py:10")
        assert row.lost == 1
        # exp's result is written and read again: two values of 4 MiB
        assert row.delta(BYTES) == 2 * 4 * SIZE
        assert row.delta(LAUNCHES) == 1
        assert any("f32[1024,1024] of ka0 (model.py:10), 4.00 MiB" in said for said in row.said)
        assert row.is_worse

    def test_the_way_back(self) -> None:
        row = only_row(program_change(split_program(), fused_program()))
        assert row.change == "moved into a fusion"
        assert row.delta(BYTES) == -2 * 4 * SIZE
        assert not row.is_worse

    def test_lines_that_moved_do_not_hide_it(self) -> None:
        row = only_row(program_change(fused_program(), split_program(shift=3)))
        assert (row.change, row.place) == ("moved out of a fusion", "model.py:13")

    def test_the_same_in_every_layer_is_one_row(self) -> None:
        row = only_row(program_change(fused_program(layers=9), split_program(layers=9)))
        assert (row.count, row.lost, row.delta(BYTES)) == (9, 9, 9 * 2 * 4 * SIZE)

    def test_one_layer_of_many(self) -> None:
        row = only_row(program_change(fused_program(layers=9), split_program(layers=9, broken=frozenset({4}))))
        assert (row.count, row.head_names) == (1, ("ka4", "kb4"))

    def test_xlas_reason(self) -> None:
        head = msgspec.structs.replace(split_program(), fusion_refusals={"ka0": "the consumer is not fusible"})
        assert "XLA: the consumer is not fusible" in only_row(program_change(fused_program(), head)).said

    def test_the_line_that_was_changed_although_nothing_of_it_is_left(self) -> None:
        found = program_change(
            fused_program(),
            apart_behind_a_barrier(),
            before=(before_optimization(barrier=False), before_optimization(barrier=True)),
        )
        row = only_row(found)
        assert (row.source, row.where()) == ("model.py:11", "model.py:11")
        assert row.place == "model.py:10"
        assert found.written is not None
        assert [(one.place, one.change, one.what) for one in found.written] == [
            ("model.py:11", "new", "optimization_barrier")
        ]

    def test_nobody_knows_what_was_written(self) -> None:
        assert program_change(fused_program(), split_program()).written is None


def apart_behind_a_barrier() -> HloModule:
    """As ``apart``, its second line one further down."""
    text = split_program()
    moved = {}
    for name, computation in text.computations.items():
        lines = tuple(
            msgspec.structs.replace(one, line=12) if one.line == 11 else one for one in computation.instructions
        )
        moved[name] = msgspec.structs.replace(computation, instructions=lines, by_name={one.name: one for one in lines})
    return msgspec.structs.replace(text, computations=moved)


class TestCollectives:
    @pytest.mark.parametrize(
        ("head", "why"),
        [
            (gathers(sync=True), "marked synchronous"),
            (gathers(beside=False), "nothing scheduled between start and done"),
        ],
    )
    def test_it_blocks_now(self, head: HloModule, why: str) -> None:
        row = only_row(program_change(gathers(), head))
        assert (row.change, row.place, row.blocking) == ("collective became blocking", "model.py:20", 1)
        assert row.amounts == {}
        assert any(why in said for said in row.said)
        assert row.is_worse

    def test_it_no_longer_does(self) -> None:
        row = only_row(program_change(gathers(sync=True), gathers()))
        assert (row.change, row.blocking, row.is_worse) == ("collective no longer blocks", 0, False)

    def test_a_new_one(self) -> None:
        without = hlo_module(
            "work {\n  x = f32[1024,1024]{1,0} parameter(0)\n  ROOT t = f32[1024,1024]{1,0} tanh(x)\n}\nENTRY main {\n"
            "  p = f32[128,1024]{1,0} parameter(0)\n  q = f32[1024,1024]{1,0} parameter(1)\n"
            "  w = f32[1024,1024]{1,0} fusion(q), kind=kLoop, calls=work, "
            'metadata={op_name="jit(step)/tanh" source_file="model.py" source_line=21}, '
            'backend_config={"operation_queue_id":"0"}\n'
            "  ROOT r = (f32[128,1024]{1,0}, f32[1024,1024]{1,0}) tuple(p, w)\n}"
        )
        row = only_row(program_change(without, gathers(sync=True)))
        assert (row.change, row.place, row.blocking) == ("new collective", "model.py:20", 1)
        assert row.delta(WIRE) > 0


def test_a_loop_with_more_turns() -> None:
    found = program_change(loops(4), loops(9))
    assert {row.change for row in found.rows} == {"trip count changed"}  # the body, and what counts its turns
    (row,) = [row for row in found.rows if row.what == "tanh"]
    assert row.said[0] == "runs 4 → 9 times"
    assert row.delta(LAUNCHES) == 5


def test_another_type() -> None:
    row = only_row(program_change(matmul_program("bf16"), matmul_program("f32")))
    assert row.change == "type changed"
    assert row.said[0] == "bf16, product bf16 → f32, product f32"
    assert row.delta(BYTES) > 0


def test_a_product_that_is_computed_again() -> None:
    row = only_row(program_change(matmul_program(), matmul_program(again=True)))
    assert (row.change, row.what, row.phase) == ("more recompute", "dot_general", "recompute")
    assert row.delta(RECOMPUTED) == row.delta(FLOPS) == 2 * 512**3


def test_nothing_in_common() -> None:
    found = program_change(matmul_program(), loops(3))
    assert {row.change for row in found.rows} == {"new", "gone"}
    found.check()


@lru_cache
def fixture(name: str) -> HloModule:
    (module,) = load_one(FIXTURES / f"{name}.hlo.pb.xz").hlo
    return module


PAIRS = [
    ("attention-naive-scan-small-none", "attention-naive-scan-small-full"),
    ("attention-naive-unrolled-small-none", "attention-naive-unrolled-small-dots"),
    ("attention-naive-scan-small-none", "attention-blocked-scan-small-none"),
    ("mlp-swiglu-halves-two-none", "mlp-swiglu-listed-other-none"),
]


class TestWhatXlaMade:
    @pytest.mark.parametrize(("base", "head"), PAIRS)
    def test_parts_sum_to_the_change_and_turn_round_with_the_sides(self, base: str, head: str) -> None:
        there, back = program_change(fixture(base), fixture(head)), program_change(fixture(head), fixture(base))
        costs = module_cost(fixture(base)), module_cost(fixture(head))
        assert there.totals[BYTES] == (costs[0].total.bytes, costs[1].total.bytes)
        assert there.totals[FLOPS] == (costs[0].total.flops, costs[1].total.flops)
        for name, (before, after) in there.totals.items():
            assert sum(row.delta(name) for row in there.rows) == after - before
            assert back.totals[name] == (after, before)
        back.check()

    @pytest.mark.parametrize("name", PAIRS[0])
    def test_each_is_itself(self, name: str) -> None:
        read_again = load_one(FIXTURES / f"{name}.hlo.pb.xz").hlo[0]
        assert program_change(fixture(name), read_again).identical

    def test_checkpoint_is_recompute_and_a_lower_peak(self) -> None:
        found = program_change(*map(fixture, PAIRS[0]))
        base, head = found.totals[PEAK]
        assert head < base / 2
        first = found.rows[0]
        assert (first.change, first.what) == ("more recompute", "dot_general")
        assert first.place.startswith("perfscope/workloads/jax/attention.py:")

    def test_memory_that_was_not_given_away(self) -> None:
        found = program_change(
            fixture("attention-naive-scan-small-none"), fixture("attention-naive-scan-small-none-no-donation")
        )
        worst = max(found.rows, key=lambda row: row.delta(PEAK))
        assert worst.what == "arguments, results and constants"
        base, head = worst.amounts[PEAK]
        assert head > 1.99 * base  # the whole state lies there twice

    def test_the_dump_beside_it_says_what_was_written(self, tmp_path: Path) -> None:
        from perfscope.analyzers.readers.hlo.unoptimized import unoptimized_program

        assert unoptimized_program(str(tmp_path / "00.jit_step.hlo.pb")) is None
        (tmp_path / "00.jit_step.hlo.pb").write_bytes(b"")
        assert unoptimized_program(str(tmp_path / "00.jit_step.hlo.pb")) is None
        text = (
            "HloModule jit_step\n\nENTRY %main.1 (p.1: f32[4]) -> f32[4] {\n  ROOT %p.1 = f32[4]{0} parameter(0)\n}\n"
        )
        (tmp_path / "00.jit_step.before_optimizations.txt").write_text(text)
        found = unoptimized_program(str(tmp_path / "00.jit_step.hlo.pb"))
        assert found is not None
        assert found.name == "jit_step"
        (tmp_path / "00.jit_step.before_optimizations.txt").write_text("no program")
        assert unoptimized_program(str(tmp_path / "00.jit_step.hlo.pb")) is None


def traced(module: HloModule, target: str | None = None) -> Trace:
    trace = hlo_trace(module)
    trace = msgspec.structs.replace(trace, source=msgspec.structs.replace(trace.source, programs=1))
    return msgspec.structs.replace(trace, target=None if target is None else parse_target(target))


def compared(base: HloModule, head: HloModule, *targets: str) -> Comparison:
    first, last = (targets[0], targets[-1]) if targets else (None, None)
    return compare([traced(base, first)], [traced(head, last)])


class TestAskedFor:
    def test_programs_are_four(self) -> None:
        assert tuple(gate.name for gate in program_gate("programs")) == DEFAULT

    @pytest.mark.parametrize(
        ("text", "percent"), [("peak", 0.1), ("peak:3", 3.0), ("hbm-bytes:0.25%", 0.25), ("launches:0", 0.0)]
    )
    def test_a_percentage(self, text: str, percent: float) -> None:
        assert program_gate(text) == (ProgramGate(name=text.partition(":")[0], percent=percent),)

    @pytest.mark.parametrize("text", ["regression", "finding:low", "peak:", "peak:-1", "peak:1e3", "none", ""])
    def test_what_is_none(self, text: str) -> None:
        assert program_gate(text) == ()

    @pytest.mark.parametrize("text", ["programs:2", "lost-fusions:1"])
    def test_what_takes_no_percentage(self, text: str) -> None:
        with pytest.raises(UsageError, match="no percentage"):
            program_gate(text)

    def test_an_unknown_one_names_those_that_there_are(self) -> None:
        with pytest.raises(UsageError, match=r"--fail-on speed: not one of regression.*lost-fusions.*none"):
            check_gates(("speed",))
        with pytest.raises(UsageError, match="none: and peak"):
            check_gates(("none", "peak"))


class TestMet:
    def test_a_lost_fusion_names_its_line(self) -> None:
        found = compared(fused_program(), split_program(), "h100")
        said = found.gates(("programs",))
        assert said[0].startswith("lost-fusions: 1 launch was part of a fusion, +8.00 MiB per run: model.py:10")
        assert said[1].startswith("hbm-bytes: 8.00 MiB → 16.0 MiB, +100% (more than 0.5%): model.py:10")
        assert len(said) == 2

    @pytest.mark.parametrize("sides", [(fused_program(), fused_program(shift=2)), (split_program(), fused_program())])
    def test_nothing_lost(self, sides: tuple[HloModule, HloModule]) -> None:
        assert compared(*sides, "h100").gates(("programs", "launches", "recompute", "modelled-time")) == ()

    def test_growth_that_is_let_pass(self) -> None:
        assert compared(fused_program(), split_program(), "h100").gates(("hbm-bytes:100",)) == ()
        assert len(compared(fused_program(), split_program(), "h100").gates(("hbm-bytes:99.9",))) == 1

    def test_a_collective_that_blocks_now(self) -> None:
        assert compared(gathers(), gathers(sync=True), "h100x8").gates(("programs",)) == (
            "blocking-collectives: 1 collective blocks now: model.py:20",
        )
        assert compared(gathers(sync=True), gathers(sync=True), "h100x8").gates(("programs",)) == ()

    def test_recompute_is_of_all_flops(self) -> None:
        (said,) = compared(matmul_program(), matmul_program(again=True), "h100").gates(("recompute:99",))
        assert said.startswith("recompute: 0 → 268 M, +100% of all FLOPs (more than 99%): model.py:40")
        assert compared(matmul_program(), matmul_program(again=True), "h100").gates(("recompute:100",)) == ()

    def test_the_model_says_that_it_is_no_measurement(self) -> None:
        (said,) = compared(fused_program(), split_program(), "h100").gates(("modelled-time",))
        assert said.startswith("modelled-time: ")
        assert said.endswith("nothing was measured")

    def test_without_a_target_nothing_is_modelled(self) -> None:
        (said,) = compared(fused_program(), split_program()).gates(("modelled-time",))
        assert "cannot be modelled" in said

    def test_a_scalar_that_is_written_is_no_lost_fusion(self) -> None:
        change = compared(fused_program(), split_program(), "h100").programs[0]
        little = tuple(
            replace(row, amounts={name: (base, base + 1) for name, (base, _) in row.amounts.items()})
            for row in change.rows
        )
        small: ProgramChange = replace(change, rows=little)
        assert list(gates_not_met([small], program_gate("lost-fusions"))) == []


class TestTargets:
    def test_different_machines_are_told_and_not_gated(self) -> None:
        found = compared(fused_program(), split_program(), "h100", "h200")
        assert found.gates(("programs",)) == ()
        (note,) = [note for note in found.notes if "other targets" in note]
        assert "H100 SXM" in note
        assert "H200" in note
        assert found.programs[0].modelled_ns is None

    def test_one_machine_is_gated_unasked(self) -> None:
        assert own_gates(compared(fused_program(), split_program(), "h100"), ()) == ("programs",)

    @pytest.mark.parametrize(("targets", "asked"), [((), ()), (("h100", "h200"), ()), (("h100",), ("none",))])
    def test_what_is_not(self, targets: tuple[str, ...], asked: tuple[str, ...]) -> None:
        assert own_gates(compared(fused_program(), split_program(), *targets), asked) == ()

    def test_what_was_asked_for_is_all(self) -> None:
        assert own_gates(compared(fused_program(), split_program(), "h100"), ("peak",)) == ("peak",)


ITEMS = st.lists(st.sampled_from("abcdefgh"), max_size=40)


@given(ITEMS, ITEMS)
def test_pairs_are_equal_and_rise_on_both_sides(base: list[str], head: list[str]) -> None:
    pairs = aligned(base, head)
    assert all(base[one] == head[other] for one, other in pairs)
    assert all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(pairs))


@given(ITEMS, st.integers(0, 40), ITEMS)
def test_what_was_put_in_between_is_all_that_is_left(base: list[str], at: int, more: list[str]) -> None:
    fresh = [f"new {name}" for name in more]
    place = min(at, len(base))
    pairs = aligned(base, [*base[:place], *fresh, *base[place:]])
    assert len(pairs) == len(base)


@given(st.lists(st.integers(0, 50), unique=True))
def test_the_longest_rising_run(values: list[int]) -> None:
    found = longest_rising(list(enumerate(values)))
    assert all(one[1] < two[1] for one, two in pairwise(found))
    assert len(found) == _longest(values)


def _longest(values: Sequence[int]) -> int:
    best = [1] * len(values)
    for at, value in enumerate(values):
        best[at] = 1 + max((best[before] for before in range(at) if values[before] < value), default=0)
    return max(best, default=0)


def test_a_layer_more_among_layers_that_are_alike() -> None:
    layer = ["norm", "product", "add"]
    assert len(aligned(layer * 12, layer * 13)) == 36
