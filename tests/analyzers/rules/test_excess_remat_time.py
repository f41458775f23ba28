"""excess_remat on compiled XLA programs: what recomputation costs, measured or modelled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.facts.hlo_remat import cloned_instructions, recomputed_products
from perfscope.analyzers.facts.hlo_storing import storing_part
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.rules import load_rule
from tests.hlo_build import GPU, corpus_module, hlo_module, hlo_trace, recorded_trace

RULE = load_rule("excess_remat")

AGAIN = "jit(step)/transpose(jvp())/checkpoint/rematted_computation/dot_general"
PRODUCT_NS = 2 * 1024**3 / 989.4e12 * 1e9
"""bf16[1024,1024] by bf16[1024,1024] at an H100's peak."""
COPY_NS = 3 * 2 * 1024**2 / 3.352e12 * 1e9
"""Two matrices read and one written: less than the product takes."""


def step(*, fused: str | None = None, cloned: bool = False, platform: str = "gpu") -> HloModule:
    """A product, and the same again; ``fused``: the path of the fusion that holds the second one.

    ``cloned``: XLA made the second out of the first.
    """
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    first, second = ("jit(step)/jvp()/dot_general",) * 2 if cloned else ("jit(step)/jvp()/dot_general", AGAIN)
    was = ' scheduling_name="first"' if cloned else ""
    meta = 'metadata={op_name="PATH" source_file="/home/me/mlp.py" source_line=6WAS}'
    again = f"%again = bf16[N]{{1,0}} dot(%a, %b), {dims}, " + meta.replace("PATH", second).replace("WAS", was)
    if fused is not None:
        again = "%again = bf16[N]{1,0} fusion(%a, %b), kind=kCustom, calls=%body, " + meta.replace(
            "PATH", fused
        ).replace("WAS", "")
    text = f"""
        %body (p: bf16[N], q: bf16[N]) -> bf16[N] {{
          %p = bf16[N]{{1,0}} parameter(0)
          %q = bf16[N]{{1,0}} parameter(1)
          %inner = bf16[N]{{1,0}} dot(%p, %q), {dims}, {meta.replace("PATH", AGAIN).replace("WAS", "")}
          ROOT %n = bf16[N]{{1,0}} negate(%inner)
        }}
        ENTRY %main (a: bf16[N], b: bf16[N]) -> bf16[N] {{
          %a = bf16[N]{{1,0}} parameter(0)
          %b = bf16[N]{{1,0}} parameter(1)
          %first = bf16[N]{{1,0}} dot(%a, %b), {dims}, {meta.replace("PATH", first).replace("WAS", was)}, {GPU}
          {again}
          ROOT %out = bf16[N]{{1,0}} add(%first, %again)
        }}
    """
    return replace(hlo_module(text.replace("[N]", "[1024,1024]")), platform=platform)


def only(trace):
    (finding,) = judge(RULE, trace).findings
    return finding


def test_a_program_alone_takes_its_roof_in_one_run():
    finding = only(hlo_trace(step()))
    assert PRODUCT_NS > COPY_NS
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.basis) == (round(PRODUCT_NS), None, "modelled")
    assert (finding.severity, "2.17 us a run of the program, on H100 SXM (assumed)" in finding.title) == (
        "medium",
        True,
    )
    row = finding.evidence[0]
    assert (row["kept_bytes"], row["ns_a_kept_mib"]) == (2 << 20, pytest.approx(PRODUCT_NS / 2))


def test_a_named_device_may_make_it_high():
    trace = hlo_trace(step())
    trace.judged_device = "NVIDIA A100-SXM4-80GB"
    finding = only(trace)
    assert finding.cost_ns == pytest.approx(2 * 1024**3 / 312e12 * 1e9, abs=1)
    assert finding.severity == "high"


def test_measured_time_replaces_the_model():
    ops = [("first", 0, 5), ("again", 5, 20), ("out", 20, 22), ("first", 50, 55), ("again", 55, 60), ("out", 58, 60)]
    finding = only(recorded_trace(step(), ops=ops, steps=[(0, 50), (50, 100)]))
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.basis) == (18_000, 9_000, "measured")
    assert (finding.severity, "it takes 9.00 us a step" in finding.title) == ("high", True)
    assert finding.evidence[0]["ns_a_kept_mib"] == 4_500


def test_a_fusion_that_is_recomputation_goes_as_a_whole():
    module = step(fused=AGAIN)
    assert only(hlo_trace(module)).cost_ns == pytest.approx(PRODUCT_NS, rel=0.01)
    finding = only(recorded_trace(module, ops=[("first", 0, 5), ("again", 5, 20), ("out", 20, 22)]))
    assert (finding.cost_ns, finding.basis) == (15_000, "measured")


def test_of_a_fusion_that_does_other_work_too_the_arithmetic_goes():
    module = step(fused="jit(step)/transpose(jvp())/mul")
    slow = only(recorded_trace(module, ops=[("first", 0, 5), ("again", 5, 20), ("out", 20, 22)]))
    assert (slow.cost_ns, slow.basis) == (round(PRODUCT_NS), "modelled")
    fast = only(recorded_trace(module, ops=[("first", 0, 5), ("again", 5, 6), ("out", 6, 8)]))
    assert fast.cost_ns == 1_000


def test_a_program_for_a_cpu_has_time_only_where_it_was_measured():
    module = step(platform="cpu")
    finding = only(hlo_trace(module))
    assert (finding.cost_ns, finding.basis) == (None, "structural")
    assert finding.evidence[0]["recompute_ns"] is None
    finding = only(recorded_trace(module, ops=[("first", 0, 5), ("again", 5, 20)], device=""))
    assert (finding.cost_ns, finding.basis) == (15_000, "measured")


def test_a_program_that_did_not_run_has_no_cost():
    other = replace(hlo_module("ENTRY %main (a: f32[4]) -> f32[4] {\n  %a = f32[4]{0} parameter(0)\n"
                               f"  ROOT %n = f32[4]{{0}} negate(%a), {GPU}\n}}"), name="jit_other")  # fmt: skip
    trace = recorded_trace(other, step(), ops=[("n", 0, 1)])
    assert (only(trace).cost_ns, only(trace).basis) == (None, "structural")


def test_clones_of_xla_take_time_as_well():
    finding = only(hlo_trace(step(cloned=True)))
    assert (finding.subject, finding.cost_ns) == ("rematerialized by XLA", round(PRODUCT_NS))
    finding = only(recorded_trace(step(cloned=True), ops=[("first", 0, 5), ("again", 5, 9)], steps=[(0, 1000)]))
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.severity) == (4_000, 4_000, "low")
    assert finding.evidence[0]["recompute_ns"] == 4_000


@pytest.mark.corpus
def test_full_checkpointing_of_a_real_program_by_hand(corpus: Path):
    finding = only(hlo_trace(corpus_module(corpus / "aot" / "gpu_ckpt_full_unroll.hlo.txt.gz")))
    # four layers of bf16[2048,1024] by bf16[1024,4096], at the peak for bfloat16
    assert finding.cost_ns == pytest.approx(4 * 2 * 2048 * 1024 * 4096 / 989.4e12 * 1e9, abs=1)


@pytest.mark.corpus
def test_a_stack_takes_as_long_as_computing_again(corpus: Path):
    trace = hlo_trace(corpus_module(corpus / "aot" / "gpu_ckpt_full_scan.hlo.txt.gz"))
    finding = only(trace)
    assert (finding.cost_ns, finding.severity, finding.basis) == (None, "low", "structural")
    (storing,) = (storing_part(trace, [one]) for one in trace.fact(recomputed_products) if not one.is_cheap)
    # four layers of bf16[2048,4096] are filled once, and read and written on the way there and back
    assert storing.modelled_ns == pytest.approx(-5 * 4 * 2 * 2048 * 4096 / 3.352e12 * 1e9, rel=0.01)
    assert "no less than running them again: 69.5 us" in finding.title


@pytest.mark.corpus
def test_xlas_own_rematerialization_takes_the_time_of_its_arithmetic(corpus: Path):
    trace = hlo_trace(corpus_module(corpus / "aot" / "gpu_remat_h100_small.hlo.txt.gz"))
    finding = next(one for one in judge(RULE, trace).findings if one.subject == "rematerialized by XLA")
    flops = sum(one.flops for one in trace.fact(cloned_instructions))
    # nearly all of it is products, at the peak; what is not runs beside them
    assert finding.cost_ns == pytest.approx(flops / 989.4e12 * 1e9, rel=0.005)
    assert finding.basis == "modelled"
