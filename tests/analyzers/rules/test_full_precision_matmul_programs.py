"""full_precision_matmul on compiled XLA programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.rules import load_rule
from tests.hlo_build import GPU, corpus_module, hlo_module, hlo_trace

RULE = load_rule("full_precision_matmul")

HIGHEST = ", operand_precision={highest,highest}"


def _judge(
    asked: str, *, dtype: str = "f32", size: int = 64, fused: bool = False, config: str = GPU, scheduled: bool = True
) -> Outcome:
    """A product [size, 64] x [64, 64] beside one of [64, 64] x [64, 6336] that asks for nothing: 1% at size 64."""
    meta = 'metadata={op_name="jit(step)/mlp/dot_general" source_file="/home/me/mlp.py" source_line=6}'
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    dot = f"{dtype}[{size},64] dot(%a, %b), {dims}{asked}, {meta}"
    parameters = f"  %a = {dtype}[{size},64] parameter(0)\n  %b = {dtype}[64,64] parameter(1)\n"
    body = f"%body () -> {dtype}[] {{\n{parameters}  ROOT %inner = {dot}\n}}\n" if fused else ""
    call = f"{dtype}[{size},64] fusion(%a, %b), kind=kCustom, calls=%body, {config}" if fused else f"{dot}, {config}"
    text = (
        f"{body}ENTRY %main () -> {dtype}[] {{\n{parameters}  %c = bf16[64,64] parameter(2)\n"
        f"  %d = bf16[64,6336] parameter(3)\n  %plain = bf16[64,6336] dot(%c, %d), {dims}\n  ROOT %full = {call}\n}}\n"
    )
    return judge(RULE, hlo_trace(hlo_module(text, scheduled=scheduled)))


@pytest.mark.parametrize("asked", [HIGHEST, ", operand_precision={default,highest}", ", algorithm=dot_f32_f32_f32"])
@pytest.mark.parametrize("fused", [False, True])
def test_float32_in_full_precision_is_flagged_once_with_its_line(asked: str, fused: bool):
    outcome = _judge(asked, size=640, fused=fused)
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis) == ("flagged", "float32 matrix products", "structural")
    assert finding.where.label() == "/home/me/mlp.py:6"
    (row,) = finding.evidence
    assert (row["gflops"], row["times"]) == (2 * 640 * 64 * 64 / 1e9, 1)
    assert row["flops_share"] == pytest.approx(10 / 109)


def test_float64_is_flagged_whatever_it_asks_for():
    (finding,) = _judge("", dtype="f64", size=640).findings
    assert finding.subject == "float64 matrix products"
    assert "x64" in finding.advice


def test_the_threshold_is_one_percent_of_the_arithmetic():
    assert _judge(HIGHEST, size=64).status == "flagged"
    assert _judge(HIGHEST, size=63).status == "clean"


@pytest.mark.parametrize("asked", ["", ", operand_precision={high,high}", ", algorithm=dot_tf32_tf32_f32"])
def test_what_runs_on_matrix_cores_is_clean(asked: str):
    assert _judge(asked, size=640).status == "clean"


def test_bfloat16_is_clean_at_any_precision():
    assert _judge(HIGHEST, dtype="bf16", size=640).status == "clean"


def test_what_cannot_be_judged_abstains():
    cpu = _judge(HIGHEST, config='backend_config={"outer_dimension_partitions":["2"]}')
    assert (cpu.status, "no matrix cores" in (cpu.reason or "")) == ("abstained", True)
    assert _judge(HIGHEST, scheduled=False).status == "abstained"


@pytest.mark.corpus
@pytest.mark.parametrize("program", ["gpu_attn_naive", "gpu_moe_ragged", "tpu_md_fsdp", "gpu_ckpt_full_scan"])
def test_real_programs_that_ask_for_nothing_are_clean(corpus: Path, program: str):
    module = corpus_module(corpus / "aot" / f"{program}.hlo.txt.gz")
    assert judge(RULE, hlo_trace(module)).status == "clean"
