"""Compiled programs explained by instruction: built ones, and those that XLA made of the workloads for an H100."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from perfscope.analyzers.compare.program_diff import program_change
from perfscope.analyzers.compare.program_row import ProgramChange, ProgramRow
from perfscope.analyzers.compare.program_units import BYTES, FLOPS, LAUNCHES, PEAK, RECOMPUTED, WIRE
from perfscope.analyzers.hlo.cost import module_cost
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.load import load_one
from tests.analyzers.compare.programs import SIZE, apart, fused, gathers, loops, product, written
from tests.conftest import REPOSITORY
from tests.hlo_build import hlo_module

FIXTURES = REPOSITORY / "fixtures" / "h100-programs"


def only(change: ProgramChange) -> ProgramRow:
    (row,) = change.rows
    return row


def test_other_names_and_lines_are_the_same_program() -> None:
    found = program_change(fused(layers=3), fused(layers=3, shift=7, suffix="z", file="elsewhere/model.py"))
    assert found.identical
    assert found.rows == ()
    assert found.base_fingerprint == found.head_fingerprint


class TestAFusionThatIsLost:
    def test_the_row_names_what_moved_and_what_it_costs(self) -> None:
        row = only(program_change(fused(), apart()))
        assert (row.change, row.what, row.place) == ("moved out of a fusion", "exp", "model.py:10")
        assert row.lost == 1
        # exp's result is written and read again: two values of 4 MiB
        assert row.delta(BYTES) == 2 * 4 * SIZE
        assert row.delta(LAUNCHES) == 1
        assert any("f32[1024,1024] of ka0 (model.py:10), 4.00 MiB" in said for said in row.said)
        assert row.is_worse

    def test_the_way_back(self) -> None:
        row = only(program_change(apart(), fused()))
        assert row.change == "moved into a fusion"
        assert row.delta(BYTES) == -2 * 4 * SIZE
        assert not row.is_worse

    def test_lines_that_moved_do_not_hide_it(self) -> None:
        row = only(program_change(fused(), apart(shift=3)))
        assert (row.change, row.place) == ("moved out of a fusion", "model.py:13")

    def test_the_same_in_every_layer_is_one_row(self) -> None:
        row = only(program_change(fused(layers=9), apart(layers=9)))
        assert (row.count, row.lost, row.delta(BYTES)) == (9, 9, 9 * 2 * 4 * SIZE)

    def test_one_layer_of_many(self) -> None:
        row = only(program_change(fused(layers=9), apart(layers=9, broken=frozenset({4}))))
        assert (row.count, row.head_names) == (1, ("ka4", "kb4"))

    def test_xlas_reason(self) -> None:
        head = replace(apart(), fusion_refusals={"ka0": "the consumer is not fusible"})
        assert "XLA: the consumer is not fusible" in only(program_change(fused(), head)).said

    def test_the_line_that_was_changed_although_nothing_of_it_is_left(self) -> None:
        found = program_change(
            fused(), apart_behind_a_barrier(), before=(written(barrier=False), written(barrier=True))
        )
        row = only(found)
        assert (row.source, row.where()) == ("model.py:11", "model.py:11")
        assert row.place == "model.py:10"
        assert found.written is not None
        assert [(one.place, one.change, one.what) for one in found.written] == [
            ("model.py:11", "new", "optimization_barrier")
        ]

    def test_nobody_knows_what_was_written(self) -> None:
        assert program_change(fused(), apart()).written is None


def apart_behind_a_barrier() -> HloModule:
    """As ``apart``, its second line one further down."""
    text = apart()
    moved = {}
    for name, computation in text.computations.items():
        lines = tuple(replace(one, line=12) if one.line == 11 else one for one in computation.instructions)
        moved[name] = replace(computation, instructions=lines, by_name={one.name: one for one in lines})
    return replace(text, computations=moved)


class TestCollectives:
    @pytest.mark.parametrize(
        ("head", "why"),
        [
            (gathers(sync=True), "marked synchronous"),
            (gathers(beside=False), "nothing scheduled beside it"),
        ],
    )
    def test_it_blocks_now(self, head: HloModule, why: str) -> None:
        row = only(program_change(gathers(), head))
        assert (row.change, row.place, row.blocking) == ("collective became blocking", "model.py:20", 1)
        assert row.amounts == {}
        assert any(why in said for said in row.said)
        assert row.is_worse

    def test_it_no_longer_does(self) -> None:
        row = only(program_change(gathers(sync=True), gathers()))
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
        row = only(program_change(without, gathers(sync=True)))
        assert (row.change, row.place, row.blocking) == ("new collective", "model.py:20", 1)
        assert row.delta(WIRE) > 0


def test_a_loop_with_more_turns() -> None:
    found = program_change(loops(4), loops(9))
    assert {row.change for row in found.rows} == {"trip count changed"}  # the body, and what counts its turns
    (row,) = [row for row in found.rows if row.what == "tanh"]
    assert row.said[0] == "runs 4 → 9 times"
    assert row.delta(LAUNCHES) == 5


def test_another_type() -> None:
    row = only(program_change(product("bf16"), product("f32")))
    assert row.change == "type changed"
    assert row.said[0] == "bf16, product bf16 → f32, product f32"
    assert row.delta(BYTES) > 0


def test_a_product_that_is_computed_again() -> None:
    row = only(program_change(product(), product(again=True)))
    assert (row.change, row.what, row.phase) == ("more recompute", "dot_general", "recompute")
    assert row.delta(RECOMPUTED) == row.delta(FLOPS) == 2 * 512**3


def test_nothing_in_common() -> None:
    found = program_change(product(), loops(3))
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

    @pytest.mark.parametrize("name", sorted({name for pair in PAIRS for name in pair}))
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
        from perfscope.analyzers.readers._before import program_before

        assert program_before(str(tmp_path / "00.jit_step.hlo.pb")) is None
        (tmp_path / "00.jit_step.hlo.pb").write_bytes(b"")
        assert program_before(str(tmp_path / "00.jit_step.hlo.pb")) is None
        text = (
            "HloModule jit_step\n\nENTRY %main.1 (p.1: f32[4]) -> f32[4] {\n  ROOT %p.1 = f32[4]{0} parameter(0)\n}\n"
        )
        (tmp_path / "00.jit_step.before_optimizations.txt").write_text(text)
        found = program_before(str(tmp_path / "00.jit_step.hlo.pb"))
        assert found is not None
        assert found.name == "jit_step"
        (tmp_path / "00.jit_step.before_optimizations.txt").write_text("no program")
        assert program_before(str(tmp_path / "00.jit_step.hlo.pb")) is None
