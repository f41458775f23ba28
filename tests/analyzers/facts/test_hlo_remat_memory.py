"""What recomputation buys: room on the device, a peak that is elsewhere, memory that is needed, copies for nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.facts.hlo_program import costs
from perfscope.analyzers.facts.hlo_remat import cloned_instructions, recomputed_products
from perfscope.analyzers.facts.hlo_remat_memory import (
    DESCRIBED,
    GIGABYTES,
    USABLE_SHARE,
    bought_by_checkpoint,
    bought_by_clones,
    timeline_of,
    usable_bytes,
)
from perfscope.analyzers.facts.program_device import judge_for
from perfscope.analyzers.hardware import DEVICES, named_device
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.memory.counters import AllocatorCounters
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import Trace
from tests.hlo_build import corpus_module, hlo_module, hlo_trace

RULE = load_rule("excess_remat")

FORWARD, AGAIN = "jit(step)/jvp()/dot_general", "jit(step)/transpose(jvp())/checkpoint/rematted_computation/dot_general"
BACKWARD = "jit(step)/transpose(jvp())/mul"
N = 8192
RESULT = 2 * N * N
"""Bytes of a product, bfloat16."""


def on_gpu(text: str) -> HloModule:
    return replace(hlo_module(text), platform="gpu")


def step(*, around: int = 0, middle: int = 0) -> HloModule:
    """A product, something else, the product again and its reader.

    ``around``: elements of bfloat16 that are alive before the product only, ``middle`` between the two products only.
    """
    shape = f"bf16[{N},{N}]"
    big = [
        f'  %{name} = bf16[{size}]{{0}} custom-call(), custom_call_target="make"\n'
        f'  %{name}.use = bf16[1]{{0}} custom-call(%{name}), custom_call_target="use"\n'
        if size
        else ""
        for name, size in (("around", around), ("middle", middle))
    ]
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    return on_gpu(
        f"ENTRY %main () -> bf16[1] {{\n"
        f"  %a = bf16[{N},{N}]{{1,0}} parameter(0)\n  %b = bf16[{N},{N}]{{1,0}} parameter(1)\n"
        f"{big[0]}"
        f'  %first = {shape}{{1,0}} dot(%a, %b), {dims}, metadata={{op_name="{FORWARD}"}}\n'
        f'  %read = bf16[1]{{0}} custom-call(%first), custom_call_target="use", metadata={{op_name="{FORWARD}"}}\n'
        f"{big[1]}"
        f'  %again = {shape}{{1,0}} dot(%a, %b), {dims}, metadata={{op_name="{AGAIN}"}}\n'
        f'  ROOT %out = bf16[1]{{0}} custom-call(%again), custom_call_target="use", metadata={{op_name="{BACKWARD}"}}\n'
        f"}}",
    )


def bought(trace: Trace):  # type: ignore[no-untyped-def]
    (cost,) = trace.fact(costs)
    return bought_by_checkpoint(trace, cost, trace.fact(recomputed_products))


def test_with_room_on_the_device_it_is_flagged_with_both_peaks() -> None:
    trace = hlo_trace(step(middle=N * N))
    found = bought(trace)
    assert (found.peak, found.without) == (3 * RESULT + 2, 4 * RESULT + 2)
    assert (found.reason, found.lowers_the_peak, found.is_needed) == ("room", True, False)
    (finding,) = judge(RULE, trace).findings
    row = finding.evidence[0]
    assert (row["reason"], row["peak_bytes"], row["peak_without_bytes"]) == ("room", found.peak, found.without)
    assert row["usable_bytes"] == int(0.75 * 84_942_979_072), "of the memory that XLA describes"
    assert "a JAX program gets of H100 SXM (assumed) unless told otherwise" in finding.advice
    assert "within the" in finding.advice


def test_where_the_peak_is_elsewhere_keeping_costs_nothing() -> None:
    trace = hlo_trace(step(around=4 * N * N))
    found = bought(trace)
    assert found.reason == "peak elsewhere"
    assert found.without == found.peak == 6 * RESULT + 2
    (finding,) = judge(RULE, trace).findings
    assert "the peak is elsewhere" in finding.advice


def test_what_the_device_could_not_hold_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(RULE, hlo_trace(step(middle=N * N))).status == "flagged"
    monkeypatch.setitem(DESCRIBED, "H100 SXM", 600_000_000)  # type: ignore[attr-defined]
    trace = hlo_trace(step(middle=N * N))
    found = bought(trace)
    assert found.usable == pytest.approx(450_000_000)
    assert found.peak < found.usable < found.without
    assert (found.is_needed, found.reason) == (True, None)
    assert "more than" in found.text()
    assert judge(RULE, trace).status == "clean"


def test_what_the_allocator_of_the_run_may_take_goes_first() -> None:
    trace = hlo_trace(step(middle=N * N))
    trace.allocator_counters = AllocatorCounters(before={"bytes_limit": 450_000_000}, after={}, steps=None)
    found = bought(trace)
    assert (found.usable, found.is_needed) == (450_000_000, True)
    assert "429 MiB that the run's allocator may take of H100 SXM (assumed)" in found.text()


def test_a_size_that_the_vendor_states_counts_where_none_is_described() -> None:
    trace = hlo_trace(step(middle=N * N))
    device = named_device("L40S")
    assert device is not None
    judge_for(trace, device)
    assert bought(trace).usable == 36_000_000_000


def test_a_device_of_unknown_size_says_so() -> None:
    trace = hlo_trace(step(middle=N * N))
    device = named_device("RTX 4090")
    assert device is not None
    judge_for(trace, device)
    found = bought(trace)
    assert (found.usable, found.reason) == (None, None)
    assert "not known" in found.text()
    assert judge(RULE, trace).status == "flagged"


def test_sizes_are_of_devices_that_are_known() -> None:
    assert set(DESCRIBED) <= set(GIGABYTES) <= {one.name for one in DEVICES}
    for name, size in DESCRIBED.items():  # vendors count in powers of ten or of two, and some of it is not to be had
        assert 0.98 * GIGABYTES[name] * 10**9 < size < 1.01 * GIGABYTES[name] * 2**30
    assert set(USABLE_SHARE) == {"gpu", "tpu"}


def test_programs_for_a_cpu_have_no_device_memory() -> None:
    module = replace(step(middle=N * N), platform="cpu")
    trace = hlo_trace(module)
    assert usable_bytes(trace, module) is None
    assert timeline_of(trace, module) is not None


@pytest.mark.corpus
@pytest.mark.parametrize(("name", "lowers"), [("gpu_remat_h100_small", False)])
def test_xlas_own_rematerialization_that_lowered_nothing(corpus: Path, name: str, lowers: bool) -> None:
    trace = hlo_trace(corpus_module(corpus / "aot" / f"{name}.hlo.txt.gz"))
    (cost,) = trace.fact(costs)
    found = bought_by_clones(trace, cost, trace.fact(cloned_instructions))
    assert found is not None
    assert found.lowers_the_peak is lowers
    (finding,) = judge(RULE, trace).findings
    assert "the peak is no lower for it" in finding.title
    assert finding.evidence[0]["reason"] == "did not lower the peak"


def clones(*, between: int) -> HloModule:
    """A value computed again because something large was in memory in between."""
    big = (
        f'  %big = f32[{between}]{{0}} custom-call(), custom_call_target="make"\n'
        '  %big.use = f32[1]{0} custom-call(%big), custom_call_target="use"\n'
        if between
        else ""
    )
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    return on_gpu(
        f"ENTRY %main () -> f32[1] {{\n  %a = f32[1024,1024]{{1,0}} parameter(0)\n"
        f'  %x = f32[1024,1024]{{1,0}} dot(%a, %a), {dims}, metadata={{op_name="jit(f)/dot" scheduling_name="x"}}\n'
        '  %x.use = f32[1]{0} custom-call(%x), custom_call_target="use"\n'
        f"{big}"
        f"  %x.remat = f32[1024,1024]{{1,0}} dot(%a, %a), {dims}, "
        'metadata={op_name="jit(f)/dot" scheduling_name="x"}\n'
        '  ROOT %out = f32[1]{0} custom-call(%x.remat), custom_call_target="use"\n}',
    )


def test_copies_that_made_room_say_what_they_bought() -> None:
    trace = hlo_trace(clones(between=4 * 1024 * 1024))
    (cost,) = trace.fact(costs)
    found = bought_by_clones(trace, cost, trace.fact(cloned_instructions))
    assert found is not None
    assert found.without - found.peak == 4 * 1024 * 1024
    (finding,) = judge(RULE, trace).findings
    assert "no lower" not in finding.title
    assert finding.evidence[0]["reason"] is None
    assert "it would be" in finding.advice


def test_copies_with_nothing_in_between_are_for_nothing() -> None:
    (finding,) = judge(RULE, hlo_trace(clones(between=0))).findings
    assert finding.evidence[0]["reason"] == "did not lower the peak"
    assert "recomputed for nothing" in finding.advice
