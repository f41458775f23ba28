"""excess_remat on compiled XLA programs: jax.checkpoint's recomputation and XLA's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.devices import named_device
from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.buffers import peak_bytes
from perfscope.analyzers.hlo.device import judged_for
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.program import costs
from perfscope.analyzers.registry import load_rule
from perfscope.analyzers.time import device_doubts
from perfscope.model.finding import Outcome
from perfscope.model.memory import AllocatorCounters
from perfscope.model.trace import RECORDED, Trace
from perfscope.plugins.memory_advice.jax_layers import STACK_TRAFFIC
from perfscope.plugins.memory_advice.program_remat import (
    bought_by_checkpoint,
    cloned_instructions,
    recomputed_products,
    storing_part,
    timeline_of,
    usable_bytes,
)
from tests.build import EVERYTHING, TraceBuilder
from tests.hlo_build import GPU, corpus_module, hlo_module, hlo_trace, recorded_trace

RULE = load_rule("excess_remat")

FORWARD_PATH, REMAT_PATH = (
    "jit(step)/jvp()/dot_general",
    "jit(step)/transpose(jvp())/checkpoint/rematted_computation/dot_general",
)
BACKWARD = "jit(step)/transpose(jvp())/mul"
N = 8192
RESULT = 2 * N * N
"""Bytes of a product, bfloat16."""


def on_gpu(text: str) -> HloModule:
    return replace(hlo_module(text), platform="gpu")


def step_with_peak_around(*, around: int = 0, middle: int = 0) -> HloModule:
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
        f'  %first = {shape}{{1,0}} dot(%a, %b), {dims}, metadata={{op_name="{FORWARD_PATH}"}}\n'
        f'  %read = bf16[1]{{0}} custom-call(%first), custom_call_target="use", metadata={{op_name="{FORWARD_PATH}"}}\n'
        f"{big[1]}"
        f'  %again = {shape}{{1,0}} dot(%a, %b), {dims}, metadata={{op_name="{REMAT_PATH}"}}\n'
        f'  ROOT %out = bf16[1]{{0}} custom-call(%again), custom_call_target="use", metadata={{op_name="{BACKWARD}"}}\n'
        f"}}",
    )


def bought_by_first(trace: Trace):  # type: ignore[no-untyped-def]
    (cost,) = trace.fact(costs)
    return bought_by_checkpoint(trace, cost, trace.fact(recomputed_products))


def test_with_room_on_the_device_it_is_flagged_with_both_peaks() -> None:
    trace = hlo_trace(step_with_peak_around(middle=N * N))
    found = bought_by_first(trace)
    assert (found.peak, found.without) == (3 * RESULT + 2, 4 * RESULT + 2)
    assert (found.reason, found.lowers_the_peak, found.is_needed) == ("room", True, False)
    (finding,) = judge(RULE, trace).findings
    row = finding.evidence[0]
    assert (row["reason"], row["peak_bytes"], row["peak_without_bytes"]) == ("room", found.peak, found.without)
    assert row["usable_bytes"] == int(0.75 * 84_942_979_072), "of the memory that the catalogue states"
    assert "a JAX program gets of H100 SXM (assumed) unless told otherwise" in finding.advice
    assert "within the" in finding.advice


def test_where_the_peak_is_elsewhere_keeping_costs_nothing() -> None:
    trace = hlo_trace(step_with_peak_around(around=4 * N * N))
    found = bought_by_first(trace)
    assert found.reason == "peak elsewhere"
    assert found.without == found.peak == 6 * RESULT + 2
    (finding,) = judge(RULE, trace).findings
    assert "the peak is elsewhere" in finding.advice


def test_what_the_device_could_not_hold_is_no_finding() -> None:
    assert judge(RULE, hlo_trace(step_with_peak_around(middle=N * N))).status == "flagged"
    device = named_device("T4")
    assert device is not None
    usable = round(0.75 * 16e9)
    trace = judged_for(hlo_trace(step_with_peak_around(middle=(usable - 5 * RESULT // 2) // 2)), device)
    found = bought_by_first(trace)
    assert found.usable == usable
    assert found.peak < found.usable < found.without
    assert (found.is_needed, found.reason) == (True, None)
    assert "more than" in found.text()
    assert judge(RULE, trace).status == "clean"


def test_what_the_allocator_of_the_run_may_take_goes_first() -> None:
    trace = hlo_trace(step_with_peak_around(middle=N * N))
    trace = replace(
        trace, allocator_counters=AllocatorCounters(before={"bytes_limit": 450_000_000}, after={}, steps=None)
    )
    found = bought_by_first(trace)
    assert (found.usable, found.is_needed) == (450_000_000, True)
    assert "429 MiB that the run's allocator may take of H100 SXM (assumed)" in found.text()


def test_a_device_of_unknown_size_says_so() -> None:
    device = named_device("V100 SXM2")
    assert device is not None
    trace = judged_for(hlo_trace(step_with_peak_around(middle=N * N)), device)
    found = bought_by_first(trace)
    assert (found.usable, found.reason) == (None, None)
    assert "not known" in found.text()
    assert judge(RULE, trace).status == "flagged"


def test_programs_for_a_cpu_have_no_device_memory() -> None:
    module = replace(step_with_peak_around(middle=N * N), platform="cpu")
    trace = hlo_trace(module)
    assert usable_bytes(trace, module) is None
    assert timeline_of(trace, module) is not None


PLAIN, REMATERIALIZED = (
    "jit(step)/jvp()/dot_general",
    "jit(step)/transpose(jvp())/checkpoint/rematted_computation/dot_general",
)


def product(name: str, path: str, *, size: int = 1024, scheduled_as: str = "") -> str:
    """bf16[size,size] = bf16[size,1024] x bf16[1024,size]."""
    clone = f' scheduling_name="{scheduled_as}"' if scheduled_as else ""
    meta = f'metadata={{op_name="{path}" source_file="/home/me/mlp.py" source_line=6{clone}}}'
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    return f"  %{name} = bf16[{size},{size}]{{1,0}} dot(%a{size}, %b{size}), {dims}, {meta}\n"


def program(*lines: str, name: str = "jit_step", keep: int = 0, scheduled: bool = True) -> HloModule:
    """Products in a row; ``keep``: elements of float32 that stay alive to the end."""
    sizes = (1024, 64)
    arguments = "".join(
        f"  %a{n} = bf16[{n},1024]{{1,0}} parameter({2 * i})\n  %b{n} = bf16[1024,{n}]{{1,0}} parameter({2 * i + 1})\n"
        for i, n in enumerate(sizes)
    )
    held = f'  %kept = f32[{keep}]{{0}} custom-call(), custom_call_target="make"\n' if keep else ""
    used = '  %use = f32[1]{0} custom-call(%kept), custom_call_target="use"\n' if keep else ""
    root = "  ROOT %out = bf16[1024,1024]{1,0} negate(%first)\n"
    return hlo_module(f"ENTRY %main () -> bf16[] {{\n{arguments}{held}{''.join(lines)}{used}{root}}}", name,
                      scheduled=scheduled)  # fmt: skip


def _judge(*modules: HloModule) -> Outcome:
    return judge(RULE, hlo_trace(*modules))


FIRST = product("first", PLAIN)


def test_a_product_that_runs_again_is_flagged_with_its_line_and_what_keeping_it_takes():
    outcome = _judge(program(FIRST, product("again", REMATERIALIZED)))
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis) == ("flagged", "recomputed forward", "structural")
    assert (finding.severity, finding.cost_ns, finding.where.label()) == ("medium", None, "/home/me/mlp.py:6")
    row = finding.evidence[0]
    assert (row["product"], row["times"], row["gflops"]) == ("again", 1, 2 * 1024**3 / 1e9)
    assert row["kept_bytes"] == 2 * 1024 * 1024
    assert "dots_with_no_batch_dims_saveable" in finding.advice


def test_the_threshold_is_a_twentieth_of_the_arithmetic():
    few = [product(f"p{index}", PLAIN) for index in range(17)]
    assert _judge(program(FIRST, product("again", REMATERIALIZED), *few)).status == "flagged"
    assert _judge(program(FIRST, product("again", REMATERIALIZED), *few, product("more", PLAIN))).status == "clean"


@pytest.mark.parametrize(("batch", "status"), [("", "flagged"), (", lhs_batch_dims={0}, rhs_batch_dims={0}", "clean")])
def test_on_a_cpu_jaxs_own_policy_says_what_is_cheap(batch: str, status: str):
    again = product("again", REMATERIALIZED).replace("rhs_contracting_dims={0}", f"rhs_contracting_dims={{0}}{batch}")
    module = replace(program(FIRST, again), platform="cpu")
    assert _judge(module).status == status


def test_all_that_one_checkpoint_recomputes_is_one_finding():
    (finding,) = _judge(program(FIRST, product("x", REMATERIALIZED), product("y", REMATERIALIZED))).findings
    assert "2 matrix products" in finding.title
    other = product("z", REMATERIALIZED.replace("checkpoint", "mlp/checkpoint"))
    (finding,) = _judge(program(FIRST, product("x", REMATERIALIZED), other)).findings
    assert finding.count == 2, "two checkpoints of one source line"


def test_clones_are_told_by_the_name_they_had_and_the_first_is_left_out():
    module = program(
        product("first", PLAIN, scheduled_as="first"),
        product("x.remat2", PLAIN, scheduled_as="first"),
        product("y.remat", PLAIN, scheduled_as="y"),
    )
    (found,) = hlo_trace(module).fact(cloned_instructions)
    assert (found.original, [row.instruction.name for row in found.rows]) == ("first", ["x.remat2"])
    (finding,) = _judge(module).findings
    assert finding.subject == "rematerialized by XLA"
    assert "33.3%" in finding.detail


def test_what_cannot_be_judged_abstains():
    early = _judge(program(FIRST, product("again", REMATERIALIZED), scheduled=False))
    assert early.status == "abstained"
    assert "may still remove recomputation" in (early.reason or "")
    nameless = program(FIRST.replace(PLAIN, ""))
    assert "op_name" in (_judge(nameless).reason or "")
    neither = judge(RULE, TraceBuilder(recorded=EVERYTHING - {"hlo", "autograd"}).build())
    assert neither.reason == f"not recorded: {RECORDED['autograd']}"


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("program_name", "temporary"),
    [
        ("ckpt_none_scan", 465.6e6), ("ckpt_full_scan", 71.3e6), ("ckpt_dots_scan", 151.0e6),
        ("ckpt_names_scan", 151.0e6), ("ckpt_none_unroll", 192.9e6), ("ckpt_full_unroll", 88.1e6),
        ("ckpt_dots_unroll", 125.8e6), ("ckpt_names_unroll", 125.8e6), ("remat_h100", 199e6),
        ("remat_h100_small", 241e6),
    ],
)  # fmt: skip
def test_modelled_peaks_are_within_15_percent_of_xlas(corpus: Path, program_name: str, temporary: float):
    """``temporary``: XLA's own figure at compilation, in addition to arguments and results."""
    module = corpus_module(corpus / "aot" / f"gpu_{program_name}.hlo.txt.gz")
    entry = module.entry_computation()
    arguments = sum(one.shape.bytes for one in entry.instructions if one.opcode == "parameter")
    assert peak_bytes(module) == pytest.approx(arguments + entry.root.shape.bytes + temporary, rel=0.15)


@pytest.mark.corpus
def test_clones_of_a_real_program_are_the_difference_of_the_two(corpus: Path):
    plain, small = (
        hlo_trace(corpus_module(corpus / "aot" / f"gpu_remat_h100{suffix}.hlo.txt.gz")) for suffix in ("", "_small")
    )
    difference = small.fact(costs)[0].total.flops - plain.fact(costs)[0].total.flops
    assert sum(one.flops for one in small.fact(cloned_instructions)) == pytest.approx(difference, rel=1e-5)
    assert plain.fact(cloned_instructions) == ()
    (finding,) = judge(RULE, small).findings
    assert (finding.subject, "14.4%" in finding.detail) == ("rematerialized by XLA", True)


@pytest.mark.corpus
def test_what_blocked_attention_recomputes_is_cheap(corpus: Path):
    module = corpus_module(corpus / "aot" / "gpu_attn_blocked.hlo.txt.gz")
    assert [one.is_cheap for one in hlo_trace(module).fact(recomputed_products)] == [True]
    assert _judge(module).status == "clean"


RECOMPUTED = "jit(step)/transpose(jvp())/checkpoint/rematted_computation/dot_general"
PRODUCT_NS = 2 * 1024**3 / 989.4e12 * 1e9
"""bf16[1024,1024] by bf16[1024,1024] at an H100's peak."""
COPY_NS = 3 * 2 * 1024**2 / 3.352e12 * 1e9
"""Two matrices read and one written: less than the product takes."""


def step_with_repeat(*, fused: str | None = None, cloned: bool = False, platform: str = "gpu") -> HloModule:
    """A product, and the same again; ``fused``: the path of the fusion that holds the second one.

    ``cloned``: XLA made the second out of the first.
    """
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    first, second = ("jit(step)/jvp()/dot_general",) * 2 if cloned else ("jit(step)/jvp()/dot_general", RECOMPUTED)
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
          %inner = bf16[N]{{1,0}} dot(%p, %q), {dims}, {meta.replace("PATH", RECOMPUTED).replace("WAS", "")}
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


def only_finding(trace):
    (finding,) = judge(RULE, trace).findings
    return finding


def test_a_program_alone_takes_its_roof_in_one_run():
    finding = only_finding(hlo_trace(step_with_repeat()))
    assert PRODUCT_NS > COPY_NS
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.basis) == (round(PRODUCT_NS), None, "modelled")
    assert (finding.severity, "2.17 us per run of the program, on H100 SXM (assumed)" in finding.detail) == (
        "medium",
        True,
    )
    row = finding.evidence[0]
    assert (row["kept_bytes"], row["ns_a_kept_mib"]) == (2 << 20, pytest.approx(PRODUCT_NS / 2))


def test_a_named_device_may_make_it_high():
    trace = hlo_trace(step_with_repeat())
    trace = replace(trace, judged_device="NVIDIA A100-SXM4-80GB")
    finding = only_finding(trace)
    assert finding.cost_ns == pytest.approx(2 * 1024**3 / 312e12 * 1e9, abs=1)
    assert finding.severity == "high"


def test_measured_time_replaces_the_model():
    ops = [("first", 0, 5), ("again", 5, 20), ("out", 20, 22), ("first", 50, 55), ("again", 55, 60), ("out", 58, 60)]
    trace = recorded_trace(step_with_repeat(), ops=ops, steps=[(0, 50), (50, 100)])
    trace.seed(device_doubts, ())  # two of them run side by side
    finding = only_finding(trace)
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.basis) == (18_000, 9_000, "measured")
    assert (finding.severity, "it takes 9.00 us per step" in finding.detail) == ("high", True)
    assert finding.evidence[0]["ns_a_kept_mib"] == 4_500


def test_a_fusion_that_is_recomputation_goes_as_a_whole():
    module = step_with_repeat(fused=RECOMPUTED)
    assert only_finding(hlo_trace(module)).cost_ns == pytest.approx(PRODUCT_NS, rel=0.01)
    finding = only_finding(recorded_trace(module, ops=[("first", 0, 5), ("again", 5, 20), ("out", 20, 22)]))
    assert (finding.cost_ns, finding.basis) == (15_000, "measured")


def test_of_a_fusion_that_does_other_work_too_the_arithmetic_goes():
    module = step_with_repeat(fused="jit(step)/transpose(jvp())/mul")
    slow = only_finding(recorded_trace(module, ops=[("first", 0, 5), ("again", 5, 20), ("out", 20, 22)]))
    assert (slow.cost_ns, slow.basis) == (round(PRODUCT_NS), "modelled")
    fast = only_finding(recorded_trace(module, ops=[("first", 0, 5), ("again", 5, 6), ("out", 6, 8)]))
    assert fast.cost_ns == 1_000


def test_a_program_for_a_cpu_has_time_only_where_it_was_measured():
    module = step_with_repeat(platform="cpu")
    finding = only_finding(hlo_trace(module))
    assert (finding.cost_ns, finding.basis) == (None, "structural")
    assert finding.evidence[0]["recompute_ns"] is None
    finding = only_finding(recorded_trace(module, ops=[("first", 0, 5), ("again", 5, 20)], device=""))
    assert (finding.cost_ns, finding.basis) == (15_000, "measured")


def test_a_program_that_did_not_run_has_no_cost():
    other = replace(hlo_module("ENTRY %main (a: f32[4]) -> f32[4] {\n  %a = f32[4]{0} parameter(0)\n"
                               f"  ROOT %n = f32[4]{{0}} negate(%a), {GPU}\n}}"), name="jit_other")  # fmt: skip
    trace = recorded_trace(other, step_with_repeat(), ops=[("n", 0, 1)])
    assert (only_finding(trace).cost_ns, only_finding(trace).basis) == (None, "structural")


def test_clones_of_xla_take_time_as_well():
    finding = only_finding(hlo_trace(step_with_repeat(cloned=True)))
    assert (finding.subject, finding.cost_ns) == ("rematerialized by XLA", round(PRODUCT_NS))
    finding = only_finding(
        recorded_trace(step_with_repeat(cloned=True), ops=[("first", 0, 5), ("again", 5, 9)], steps=[(0, 1000)])
    )
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.severity) == (4_000, 4_000, "low")
    assert finding.evidence[0]["recompute_ns"] == 4_000


@pytest.mark.corpus
def test_a_stack_takes_as_long_as_computing_again(corpus: Path):
    trace = hlo_trace(corpus_module(corpus / "aot" / "gpu_ckpt_full_scan.hlo.txt.gz"))
    finding = only_finding(trace)
    assert (finding.cost_ns, finding.severity, finding.basis) == (None, "low", "structural")
    (storing,) = (storing_part(trace, [one]) for one in trace.fact(recomputed_products) if not one.is_cheap)
    # four layers of bf16[2048,4096] through memory
    assert storing.modelled_ns == pytest.approx(-STACK_TRAFFIC * 4 * 2 * 2048 * 4096 / 3.352e12 * 1e9, rel=0.01)
    assert "no less than running them again: 69.5 us" in finding.detail
