"""float32 products on devices with matrix cores; fast and memory-bound ones stay clean."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from perfscope.analyzers.devices.target_text import parse_target
from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.parse.text import module_of
from perfscope.analyzers.ops.kernels import matmul_precision
from perfscope.analyzers.ops.rules.full_precision_matmul.plan import mixed_precision, planned_products
from perfscope.analyzers.plans.time import plan_works
from perfscope.analyzers.readers.load import load_all, load_one
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import AbstainError, Finding, Outcome
from perfscope.model.torch_plan import LoadedPlan
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.hlo_build import GPU, corpus_module, hlo_module, hlo_trace
from tests.plans.build import graph, plan, product, trace_of
from tests.rules import judged_by


@pytest.mark.parametrize(
    ("kernel", "precision"),
    [
        ("ampere_sgemm_32x32_sliced1x4_tn", "float32"),
        ("volta_sgemm_128x64_nn", "float32"),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>(...)", "float32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_warpsize1x4x1_ffma_aligna4", "float32"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "float32"),
        ("Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32_MI16x16x1_SN", "float32"),
        ("Cijk_Ailk_Bljk_S_B_Bias_HA_S_SAV_UserArgs_MT16x16x128_MI16x16x1_SN", "float32"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(...)", "tf32"),
        ("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4", "tf32"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16", "tf32"),
        ("ampere_fp16_s1688gemm_fp16_256x64_ldg8_f2f_tn", "float16"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x5_tn_align8>(...)", "float16"),
        ("sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4", "float16"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "bfloat16"),
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_relu_f2f_stages_64x4_tn", "bfloat16"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1", "bfloat16"),
        ("Cijk_Alik_Bljk_B_BS_BH_Bias_HA_S_SAV_UserArgs_MT256x128x64_MI16x16x1", "bfloat16"),
        ("Cijk_Alik_Bljk_HHS_BH_MT128x128x32_MI16x16x1", "float16"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128", "fp8"),
        ("void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 4, 4, false>", None),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float>", None),
        ("ampere_gcgemm_64x64_nt", None),
        ("void at::native::vectorized_elementwise_kernel<4>", None),
        ("triton_tem_fused_mm_0", None),
    ],
)
def test_the_name_tells_the_precision(kernel: str, precision: str | None):
    assert matmul_precision(kernel) == precision


RECORDED_PLANS = Path(__file__).resolve().parents[2] / "fixtures" / "plans-h100"


def plan_in_float32(name: str, products: str) -> Trace:
    """A recorded plan as if its operands were float32 and torch's setting were ``products``."""
    (trace,) = load_all(RECORDED_PLANS / name)
    (held,) = trace.torch_plans
    graphs = tuple(
        msgspec.structs.replace(
            graph,
            kernels=tuple(
                msgspec.structs.replace(kernel, dtype=products) if kernel.kind == "product" else kernel
                for kernel in graph.kernels
            ),
        )
        for graph in held.plan.graphs
    )

    def widened(ops: object) -> object:
        return None if ops is None else dataclasses.replace(ops, tensors=tuple(map(wide, ops.tensors)))  # type: ignore[attr-defined,type-var]

    def wide(tensor: object) -> object:
        return dataclasses.replace(tensor, dtype="float32") if tensor.dtype == "bfloat16" else tensor  # type: ignore[attr-defined,type-var]

    plan = msgspec.structs.replace(held.plan, graphs=graphs, float32_products=products)  # type: ignore[arg-type]
    trace = msgspec.structs.replace(
        trace, torch_plans=(LoadedPlan(plan=plan, eager=widened(held.eager), outside=widened(held.outside)),)
    )  # type: ignore[arg-type]
    return msgspec.structs.replace(trace, target=parse_target("h100", None))


def plan_findings(trace: Trace) -> list[Finding]:
    check = load_rule("full_precision_matmul").plan
    assert check is not None
    return list(check(trace))


@pytest.mark.parametrize("name", ["attention-sdpa", "attention-naive-compiled"])
def test_the_whole_saving_is_that_of_every_product(name: str) -> None:
    trace = plan_in_float32(name, "float32")
    (finding,) = plan_findings(trace)
    (work,) = trace.fact(plan_works)
    products = planned_products(work)
    assert products
    device = trace.target.device  # type: ignore[union-attr]

    def least(flops: int, moved: int, dtype: str) -> float:
        return max(flops / device.peak_flops[dtype], moved / device.memory_bandwidth, 1e-6)

    by_hand = sum(
        one.runs * (least(one.flops, one.bytes, "float32") - least(one.flops, one.bytes, "tf32")) for one in products
    )
    assert finding.cost_ns == pytest.approx(by_hand * 1e9, rel=1e-3)
    assert finding.basis == "modelled"
    assert finding.where.file is not None
    assert "set_float32_matmul_precision" in finding.advice


@pytest.mark.parametrize("name", ["attention-sdpa", "attention-naive-compiled"])
def test_tf32_is_clean(name: str) -> None:
    assert plan_findings(plan_in_float32(name, "tf32")) == []


def test_a_device_without_another_precision_is_not_judged() -> None:
    trace = plan_in_float32("attention-sdpa", "float32")
    target = trace.target
    assert target is not None
    device = target.device
    trace = msgspec.structs.replace(
        trace, target=replace(target, device=replace(device, peak_flops={"float32": device.peak_flops["float32"]}))
    )
    with pytest.raises(AbstainError, match="no faster precision"):
        plan_findings(trace)


def mostly_bfloat16_plan(folder: Path, dtype: str, count: int) -> Trace:
    """A compiled program of six products of 4096^3, ``count`` of them not in bfloat16."""
    large = {"flops": 2 * 4096**3, "shape": "4096x4096x4096", "read_bytes": 64 << 20, "written_bytes": 32 << 20}
    kernels = [product(dtype=dtype if at < count else "bfloat16", **large) for at in range(6)]
    return trace_of(folder, plan(graph(*kernels), float32_products="tf32" if dtype == "tf32" else "float32"))


@pytest.mark.parametrize(("dtype", "times"), [("tf32", "2.0"), ("float32", "14.8")])
def test_a_program_of_bfloat16_with_one_product_that_is_not(tmp_path: Path, dtype: str, times: str) -> None:
    trace = mostly_bfloat16_plan(tmp_path, dtype, 1)
    (finding,) = plan_findings(trace)
    peaks = trace.target.device.peak_flops  # type: ignore[union-attr]
    assert finding.cost_ns == pytest.approx(2 * 4096**3 * (1 / peaks[dtype] - 1 / peaks["bfloat16"]) * 1e9, rel=1e-3)
    assert finding.subject == "float32 products among bfloat16 ones"
    assert f"{times} times the peak of {dtype}" in finding.detail
    assert [row["multiplied_in"] for row in finding.evidence] == [dtype]
    (work,) = trace.fact(plan_works)
    assert mixed_precision(planned_products(work)) == "bfloat16"


def test_a_program_that_is_mostly_of_tf32_is_what_was_asked_for(tmp_path: Path) -> None:
    trace = mostly_bfloat16_plan(tmp_path, "tf32", 3)
    (work,) = trace.fact(plan_works)
    assert mixed_precision(planned_products(work)) is None
    assert plan_findings(trace) == []


def test_a_program_that_is_mostly_of_float32_is_told_of_tf32(tmp_path: Path) -> None:
    (finding,) = plan_findings(mostly_bfloat16_plan(tmp_path, "float32", 4))
    assert finding.subject == "float32 matrix products"
    assert "tf32" in finding.title


A100 = "NVIDIA A100-SXM4-80GB"
SGEMM = "ampere_sgemm_128x64_tn"


outcome = judged_by("full_precision_matmul")


def matmul_trace(kernel: str = SGEMM, *, device: str = A100, us: float = 100, step_us: float = 1000,
            shapes: list[list[int]] | None = None, hidden_us: float = 0) -> Trace:  # fmt: skip
    t = TraceBuilder()
    t.device(0, device)
    t.step(0, 0, step_us)
    t.python("model.py(7): forward", 0, 20)
    t.op("aten::mm", 1, 10, external_id=1, shapes=json.dumps(shapes) if shapes else None,
         dtypes='["float", "float"]' if shapes else None)  # fmt: skip
    t.kernel(kernel, 20, 20 + us, external_id=1)
    if hidden_us:
        t.kernel("other", 20, 20 + hidden_us, stream=9)
    return t.build()


def test_flagged_with_the_peaks_and_the_line():
    (finding,) = outcome(matmul_trace()).findings
    assert finding.cost_ns == round(100_000 * (1 - 19.5 / 156))
    assert finding.basis == "modelled"
    assert (finding.where.op, finding.where.file, finding.where.line) == ("aten::mm", "model.py", 7)
    assert "peak in tf32 is 8.0 times" in finding.detail
    assert 'set_float32_matmul_precision("high")' in finding.advice
    assert "data sheet" in str(finding.evidence[0]["peaks_from"])


def test_just_below_the_threshold_is_clean():
    saved_us = 100 * (1 - 19.5 / 156)
    assert outcome(matmul_trace(step_us=saved_us * 100 - 1)).status == "flagged"
    assert outcome(matmul_trace(step_us=saved_us * 100 + 10)).status == "clean"


@pytest.mark.parametrize(
    "kernel",
    ["cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n",
     "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", "void gemv2T_kernel_val<int, int, float>",
     "vectorized_elementwise_kernel<4>"],
)  # fmt: skip
def test_fast_products_and_other_kernels_are_clean(kernel: str):
    assert outcome(matmul_trace(kernel)).status == "clean"


def test_no_product_is_taken_below_its_time_through_memory():
    # (65536, 128) x (128, 128): 67 MB at 2039 GB/s are 32.9 us of the 100
    (finding,) = outcome(matmul_trace(shapes=[[65536, 128], [128, 128]])).findings
    moved = 4 * (2 * 65536 * 128 + 128 * 128)
    assert finding.cost_ns == pytest.approx(100_000 - moved / 2039e9 * 1e9, abs=1)
    # (8, 65536) x (65536, 128): 36 MB in 18 us of which only the excess could go
    assert outcome(matmul_trace(shapes=[[8, 65536], [65536, 128]], us=17)).status == "clean"


def test_time_that_other_work_hides_is_not_charged():
    (finding,) = outcome(matmul_trace(hidden_us=60)).findings
    assert finding.cost_ns == round(40_000 * (1 - 19.5 / 156))


def test_a_device_without_tf32_is_advised_its_own_way():
    (volta,) = outcome(matmul_trace("volta_sgemm_128x64_nn", device="Tesla V100-SXM2-16GB")).findings
    assert "GradScaler" in volta.advice
    assert volta.cost_ns == round(100_000 * (1 - 15.7 / 125))
    (cdna,) = outcome(matmul_trace("Cijk_Ailk_Bljk_SB_MT64x64x8", device="AMD Instinct MI210")).findings
    assert "no TF32" in cdna.advice


@pytest.mark.parametrize(
    ("op", "kernels", "status"),
    [
        ("aten::mm", ["fc-dtype_Float"], "abstained"),
        ("aten::mm", ["fc-dtype_Float", "nvjet_tst_192x8_64x8_4x1_v_bz_TNT"], "clean"),
        ("aten::add", ["add-dtype_Float"], "clean"),
    ],
)
def test_abstains_where_no_name_of_a_products_kernels_tells(op: str, kernels: list[str], status: str):
    """Kernels of MTIA; a reduction after a product recognised by name is not a product by itself."""
    t = TraceBuilder()
    t.op(op, 0, 50)
    for number, kernel in enumerate(kernels):
        t.launched(kernel, 5 + 5 * number, 100 + 200 * number, 200 + 200 * number, correlation=number + 1)
    judged = outcome(t.build())
    assert (judged.status, "fc-dtype_Float" in (judged.reason or "")) == (status, status == "abstained")


def test_abstains_where_xla_compiled_the_kernels():
    t = TraceBuilder()
    t.kernel("gemm_fusion_dot_1", 0, 100)
    t.row("hlo_ops", start_ns=0, end_ns=100_000, name=t.code("gemm_fusion_dot.1"), encloses=False, kernel=0)
    judged = outcome(t.build())
    assert judged.status == "abstained"
    assert "XLA compiled the kernels" in (judged.reason or "")


def test_abstains_without_an_accelerator_and_on_an_unknown_device():
    host = TraceBuilder()
    host.op("aten::mm", 0, 5)
    told = outcome(host.build())
    assert told.status == "abstained"
    assert "no kernels of an accelerator" in (told.reason or "")
    unknown = outcome(matmul_trace(device="AMD Radeon Graphics"))
    assert unknown.status == "abstained"
    assert "AMD Radeon Graphics" in (unknown.reason or "")


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("param__linear_kineto", "flagged"),
        ("HolisticTraceAnalysis__trace_diff_test", "flagged"),
        ("TraceLens__h100_qwen1.5-0.5b", "clean"),
        ("astra-sim__megatron_kineto_0", "clean"),
        ("HolisticTraceAnalysis__nccl_data", "clean"),  # A100 with TF32 convolutions
    ],
)
def test_real_traces(corpus: Path, name: str, status: str):
    from perfscope.analyzers.readers.kineto.reader import read

    assert outcome(read(corpus / "kineto" / f"{name}.json.gz")).status == status


RULE = load_rule("full_precision_matmul")

HIGHEST = ", operand_precision={highest,highest}"
CPU = 'backend_config={"outer_dimension_partitions":["2"]}'
"""Marker of a program compiled for the CPU."""
DIMS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
META = 'metadata={op_name="jit(step)/mlp/dot_general" source_file="/home/me/mlp.py" source_line=6}'

SIDE = 4096
SAVED_NS = 2 * SIDE**3 * (1 / 66.9e12 - 1 / 494.7e12) * 1e9
"""An H100 multiplies float32 at 66.9 TFLOP/s, with TF32 operands at 494.7 (its data sheet)."""


def _judge(
    asked: str,
    *,
    dtype: str = "f32",
    size: int = SIDE,
    inner: int = SIDE,
    beside: int = 64,
    fused: bool = False,
    config: str = GPU,
    scheduled: bool = True,
    other: str = "bf16",
) -> Outcome:
    """A product [size, inner] x [inner, inner] and one [inner, inner] x [inner, beside] without a request."""
    dot = f"{dtype}[{size},{inner}] dot(%a, %b), {DIMS}{asked}, {META}"
    parameters = f"  %a = {dtype}[{size},{inner}] parameter(0)\n  %b = {dtype}[{inner},{inner}] parameter(1)\n"
    body = f"%body () -> {dtype}[] {{\n{parameters}  ROOT %inner = {dot}\n}}\n" if fused else ""
    whole = f"{dtype}[{size},{inner}] fusion(%a, %b), kind=kCustom, calls=%body, {config}"
    call = whole if fused else f"{dot}, {config}"
    text = (
        f"{body}ENTRY %main () -> {dtype}[] {{\n{parameters}  %c = {other}[{inner},{inner}] parameter(2)\n"
        f"  %d = {other}[{inner},{beside}] parameter(3)\n  %plain = {other}[{inner},{beside}] dot(%c, %d), {DIMS}\n"
        f"  ROOT %full = {call}\n}}\n"
    )
    return judge(RULE, hlo_trace(hlo_module(text, scheduled=scheduled)))


def test_products_inside_of_jax_linalg_ask_for_it_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    inside = 'op_name="jit(step)/transpose(jvp(jit(inv)))/jit(solve)/dot_general"'
    monkeypatch.setattr(f"{__name__}.META", META.replace('op_name="jit(step)/mlp/dot_general"', inside))
    assert _judge(HIGHEST).status == "clean"


@pytest.mark.parametrize("asked", [HIGHEST, ", operand_precision={default,highest}", ", algorithm=dot_f32_f32_f32"])
@pytest.mark.parametrize("fused", [False, True])
def test_float32_in_full_precision_is_flagged_once_with_its_line_and_time(asked: str, fused: bool):
    outcome = _judge(asked, fused=fused)
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis) == ("flagged", "float32 matrix products", "modelled")
    assert finding.where.label() == "/home/me/mlp.py:6"
    assert finding.cost_ns == pytest.approx(SAVED_NS, rel=1e-3)
    assert finding.severity == "medium"  # of an assumed device
    assert "(assumed)" in finding.detail
    (row,) = finding.evidence
    assert (row["gflops"], row["times"]) == (2 * SIDE**3 / 1e9, 1)
    assert row["flops_share"] == pytest.approx(64 / 65)


def test_float64_is_flagged_whatever_it_asks_for():
    (finding,) = _judge("", dtype="f64").findings
    assert finding.subject == "float64 matrix products"
    assert "x64" in finding.advice


def test_the_threshold_is_one_percent_of_the_time():
    beside = (SAVED_NS / 0.01 - 2 * SIDE**3 / 66.9e3) * 989.4e3 / (2 * SIDE**2)
    assert _judge(HIGHEST, beside=round(0.99 * beside)).status == "flagged"
    assert _judge(HIGHEST, beside=round(1.01 * beside)).status == "clean"


def test_a_product_that_memory_bounds_is_clean():
    """[8, 4096] x [4096, 4096] reads its 64 MiB of weights in 20 us and multiplies in 4, whatever the precision."""
    assert _judge(HIGHEST, size=8).status == "clean"


@pytest.mark.parametrize("asked", ["", ", operand_precision={high,high}", ", algorithm=dot_tf32_tf32_f32"])
@pytest.mark.parametrize("config", [GPU, CPU])
def test_what_runs_on_matrix_cores_is_clean(asked: str, config: str):
    assert _judge(asked, config=config).status == "clean"


def test_bfloat16_is_clean_at_any_precision():
    assert _judge(HIGHEST, dtype="bf16").status == "clean"


@pytest.mark.parametrize("fused", [False, True])
def test_compiled_for_a_cpu_the_request_is_named_without_time(fused: bool):
    (finding,) = _judge(HIGHEST, config=CPU, fused=fused).findings
    assert (finding.basis, finding.severity, finding.cost_ns) == ("structural", "low", None)
    assert finding.where.label() == "/home/me/mlp.py:6"
    assert "CPU here" in finding.detail


def test_on_a_cpu_the_threshold_is_one_percent_of_the_arithmetic():
    """64 x 64 x 64 of it next to 64 x 64 x 6336."""
    assert _judge(HIGHEST, size=64, inner=64, beside=6336, config=CPU).status == "flagged"
    assert _judge(HIGHEST, size=63, inner=64, beside=6336, config=CPU).status == "clean"


def test_float64_on_a_cpu_is_named_where_the_program_is_of_another_type():
    """[64, 64] x [64, 64] in float64 with [64, 64] x [64, beside]: half of the arithmetic, and less."""
    assert _judge("", dtype="f64", size=64, inner=64, beside=64, other="f32", config=CPU).status == "flagged"
    assert _judge("", dtype="f64", size=65, inner=64, beside=64, other="f32", config=CPU).status == "clean"
    assert _judge("", dtype="f64", size=64, inner=64, beside=64, other="f64", config=CPU).status == "clean"


WIDENED = f"""
    %wide (p: bf16[64,64]) -> f32[64,64] {{
      %p = bf16[64,64] parameter(0)
      %turned = bf16[64,64] transpose(%p), dimensions={{1,0}}
      ROOT %w = f32[64,64] convert(%turned), metadata={{op_name="NAMED"}}
    }}
    %product (l: f32[64,64], r: f32[64,64]) -> f32[64,64] {{
      %l = f32[64,64] parameter(0)
      %r = f32[64,64] parameter(1)
      ROOT %d = f32[64,64] dot(%l, %r), {DIMS}{HIGHEST}, {META}
    }}
    ENTRY %main (a: bf16[64,64], b: bf16[64,64]) -> f32[64,64] {{
      %a = bf16[64,64] parameter(0)
      %b = bf16[64,64] parameter(1)
      %wa = f32[64,64] fusion(%a), kind=kLoop, calls=%wide, {CPU}
      %wb = f32[64,64] fusion(%b), kind=kLoop, calls=%wide, {CPU}
      ROOT %full = f32[64,64] fusion(%wa, %wb), kind=kCustom, calls=%product
    }}
"""


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("", "clean"),
        ("jit(step)/mlp/dot_general", "clean"),
        ("jit(step)/mlp/convert_element_type", "flagged"),
    ],
)
def test_operands_that_the_cpu_backend_made_wide_are_clean_and_those_of_the_program_are_not(name: str, status: str):
    assert judge(RULE, hlo_trace(hlo_module(WIDENED.replace("NAMED", name)))).status == status


def test_what_cannot_be_judged_abstains():
    assert _judge(HIGHEST, scheduled=False).status == "abstained"
    assert _judge(HIGHEST, config='backend_config={"nothing":1}').status == "abstained"


@pytest.mark.corpus
@pytest.mark.parametrize("program", ["gpu_attn_naive", "gpu_moe_ragged", "tpu_md_fsdp", "gpu_ckpt_full_scan"])
def test_real_programs_that_ask_for_nothing_are_clean(corpus: Path, program: str):
    module = corpus_module(corpus / "aot" / f"{program}.hlo.txt.gz")
    assert judge(RULE, hlo_trace(module)).status == "clean"


@pytest.mark.corpus
@pytest.mark.parametrize("program", ["attn_naive", "attn_blocked", "moe_einsum", "moe_ragged", "ssm_seq", "fsdp8"])
def test_real_programs_for_a_cpu_that_ask_for_nothing_are_clean(corpus: Path, program: str):
    assert judge(RULE, load_one(corpus / "aot" / f"{program}.hlo.pb.gz")).status == "clean"


@pytest.mark.jax
@pytest.mark.parametrize(
    ("dtype", "precision", "status"),
    [
        ("float32", "highest", "flagged"),
        ("float32", "F32_F32_F32", "flagged"),
        ("float32", "high", "clean"),
        ("float32", None, "clean"),
        ("bfloat16", None, "clean"),
        ("bfloat16", "highest", "clean"),
        ("float16", "highest", "clean"),
    ],
)
def test_what_jax_makes_of_a_precision_on_a_cpu(dtype: str, precision: str | None, status: str):
    jax = pytest.importorskip("jax")
    shape = jax.ShapeDtypeStruct((256, 256), dtype)

    def layers(x: Any, w: Any) -> Any:
        return jax.numpy.tanh(jax.numpy.tanh(x.T @ w) @ w) @ w

    with jax.default_matmul_precision(precision):
        text = jax.jit(layers).lower(shape, shape).compile().as_text()
    outcome = judge(RULE, hlo_trace(module_of(text.splitlines(), "layers.hlo.txt")))
    assert outcome.status == status
    assert {finding.where.file for finding in outcome.findings} <= {__file__}


@pytest.mark.slow
@pytest.mark.jax
def test_the_workload_is_flagged_at_its_defect_and_not_without_it():
    jax = pytest.importorskip("jax")
    from perfscope.workloads.jax import attention, training
    from perfscope.workloads.options import Options

    source = Path(training.__file__).read_text().splitlines()
    (line,) = [number for number, text in enumerate(source, 1) if 'precision="highest"' in text and "# defect:" in text]
    found = {}
    for defects in (frozenset({"fp32"}), frozenset[str]()):
        options = Options(variant="blocked", size=attention.SIZES["cpu"], defects=defects)
        model = training.LanguageModel(attention.Block, options)
        tokens = jax.ShapeDtypeStruct((options.size.batch, options.size.seq + 1), "int32")
        lowered = jax.jit(training.step_of(model)).lower(training.start(model), tokens)
        text = lowered.compile().as_text()
        found[defects] = judge(RULE, hlo_trace(module_of(text.splitlines(), "step.hlo.txt")))
    assert [one.status for one in found.values()] == ["flagged", "clean"]
    (finding,) = found[frozenset({"fp32"})].findings
    assert (Path(finding.where.file or "").name, finding.where.line) == ("training.py", line)
    assert len(finding.evidence) == 3  # forward, and the gradients of its two factors
