"""float32 products on devices with matrix cores; fast and memory-bound ones stay clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import Trace
from tests.build import TraceBuilder

A100 = "NVIDIA A100-SXM4-80GB"
SGEMM = "ampere_sgemm_128x64_tn"


def outcome(trace: Trace) -> Outcome:
    return judge(load_rule("full_precision_matmul"), trace)


def product(kernel: str = SGEMM, *, device: str = A100, us: float = 100, step_us: float = 1000,
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
    (finding,) = outcome(product()).findings
    assert finding.cost_ns == round(100_000 * (1 - 19.5 / 156))
    assert finding.basis == "modelled"
    assert (finding.where.op, finding.where.file, finding.where.line) == ("aten::mm", "model.py", 7)
    assert "tf32 (peak 8.0x)" in finding.title
    assert 'set_float32_matmul_precision("high")' in finding.advice
    assert "data sheet" in str(finding.evidence[0]["peaks_from"])


def test_just_below_the_threshold_is_clean():
    saved_us = 100 * (1 - 19.5 / 156)
    assert outcome(product(step_us=saved_us * 100 - 1)).status == "flagged"
    assert outcome(product(step_us=saved_us * 100 + 10)).status == "clean"


@pytest.mark.parametrize(
    "kernel",
    ["cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4", "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n",
     "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn", "void gemv2T_kernel_val<int, int, float>",
     "vectorized_elementwise_kernel<4>"],
)  # fmt: skip
def test_fast_products_and_other_kernels_are_clean(kernel: str):
    assert outcome(product(kernel)).status == "clean"


def test_no_product_is_taken_below_its_time_through_memory():
    # (65536, 128) x (128, 128): 67 MB at 2039 GB/s are 32.9 us of the 100
    (finding,) = outcome(product(shapes=[[65536, 128], [128, 128]])).findings
    moved = 4 * (2 * 65536 * 128 + 128 * 128)
    assert finding.cost_ns == pytest.approx(100_000 - moved / 2039e9 * 1e9, abs=1)
    # (8, 65536) x (65536, 128): 36 MB in 18 us of which only the excess could go
    assert outcome(product(shapes=[[8, 65536], [65536, 128]], us=17)).status == "clean"


def test_time_that_other_work_hides_is_not_charged():
    (finding,) = outcome(product(hidden_us=60)).findings
    assert finding.cost_ns == round(40_000 * (1 - 19.5 / 156))


def test_a_device_without_tf32_is_advised_its_own_way():
    (volta,) = outcome(product("volta_sgemm_128x64_nn", device="Tesla V100-SXM2-16GB")).findings
    assert "GradScaler" in volta.advice
    assert volta.cost_ns == round(100_000 * (1 - 15.7 / 125))
    (cdna,) = outcome(product("Cijk_Ailk_Bljk_SB_MT64x64x8", device="AMD Instinct MI210")).findings
    assert "no TF32" in cdna.advice


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
    unknown = outcome(product(device="AMD Radeon Graphics"))
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
    from perfscope.analyzers.readers.kineto import read

    assert outcome(read(corpus / "kineto" / f"{name}.json.gz")).status == status
