"""Gates on compiled programs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfscope.analyzers.compare.comparison import Comparison, compare
from perfscope.analyzers.compare.program_gates import DEFAULT, ProgramGate, gates_not_met, program_gate
from perfscope.analyzers.compare.program_row import ProgramChange
from perfscope.analyzers.hardware.target_text import parse_target
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.trace import Trace
from perfscope.commands.compare import check_gates, own_gates
from perfscope.profiler.errors import AskedWronglyError
from tests.analyzers.compare.programs import apart, fused, gathers, product
from tests.hlo_build import hlo_trace


def traced(module: HloModule, target: str | None = None) -> Trace:
    trace = hlo_trace(module)
    trace.source = replace(trace.source, programs=1)
    trace.target = None if target is None else parse_target(target)
    return trace


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
        with pytest.raises(AskedWronglyError, match="no percentage"):
            program_gate(text)

    def test_an_unknown_one_names_those_that_there_are(self) -> None:
        with pytest.raises(AskedWronglyError, match=r"--fail-on speed: not one of regression.*lost-fusions.*none"):
            check_gates(("speed",))
        with pytest.raises(AskedWronglyError, match="none: and peak"):
            check_gates(("none", "peak"))


class TestMet:
    def test_a_lost_fusion_names_its_line(self) -> None:
        found = compared(fused(), apart(), "h100")
        said = found.gates(("programs",))
        assert said[0].startswith("lost-fusions: 1 launch was part of a fusion, +8.00 MiB a run: model.py:10")
        assert said[1].startswith("hbm-bytes: 8.00 MiB → 16.0 MiB, +100% (more than 0.5%): model.py:10")
        assert len(said) == 2

    @pytest.mark.parametrize("sides", [(fused(), fused(shift=2)), (apart(), fused())])
    def test_nothing_lost(self, sides: tuple[HloModule, HloModule]) -> None:
        assert compared(*sides, "h100").gates(("programs", "launches", "recompute", "modelled-time")) == ()

    def test_growth_that_is_let_pass(self) -> None:
        assert compared(fused(), apart(), "h100").gates(("hbm-bytes:100",)) == ()
        assert len(compared(fused(), apart(), "h100").gates(("hbm-bytes:99.9",))) == 1

    def test_a_collective_that_blocks_now(self) -> None:
        assert compared(gathers(), gathers(sync=True), "h100x8").gates(("programs",)) == (
            "blocking-collectives: 1 collective blocks and did not: model.py:20",
        )
        assert compared(gathers(sync=True), gathers(sync=True), "h100x8").gates(("programs",)) == ()

    def test_recompute_is_of_all_flops(self) -> None:
        (said,) = compared(product(), product(again=True), "h100").gates(("recompute:99",))
        assert said.startswith("recompute: 0 → 268 M, +100% of all FLOPs (more than 99%): model.py:40")
        assert compared(product(), product(again=True), "h100").gates(("recompute:100",)) == ()

    def test_the_model_says_that_it_is_no_measurement(self) -> None:
        (said,) = compared(fused(), apart(), "h100").gates(("modelled-time",))
        assert said.startswith("modelled-time: ")
        assert said.endswith("nothing was measured")

    def test_without_a_target_nothing_is_modelled(self) -> None:
        (said,) = compared(fused(), apart()).gates(("modelled-time",))
        assert "cannot be modelled" in said

    def test_a_scalar_that_is_written_is_no_lost_fusion(self) -> None:
        change = compared(fused(), apart(), "h100").programs[0]
        little = tuple(
            replace(row, amounts={name: (base, base + 1) for name, (base, _) in row.amounts.items()})
            for row in change.rows
        )
        small: ProgramChange = replace(change, rows=little)
        assert list(gates_not_met([small], program_gate("lost-fusions"))) == []


class TestTargets:
    def test_different_machines_are_told_and_not_gated(self) -> None:
        found = compared(fused(), apart(), "h100", "h200")
        assert found.gates(("programs",)) == ()
        (note,) = [note for note in found.notes if "other targets" in note]
        assert "H100 SXM" in note
        assert "H200" in note
        assert found.programs[0].modelled_ns is None

    def test_one_machine_is_gated_unasked(self) -> None:
        assert own_gates(compared(fused(), apart(), "h100"), ()) == ("programs",)

    @pytest.mark.parametrize(("targets", "asked"), [((), ()), (("h100", "h200"), ()), (("h100",), ("none",))])
    def test_what_is_not(self, targets: tuple[str, ...], asked: tuple[str, ...]) -> None:
        assert own_gates(compared(fused(), apart(), *targets), asked) == ()

    def test_what_was_asked_for_is_all(self) -> None:
        assert own_gates(compared(fused(), apart(), "h100"), ("peak",)) == ("peak",)
