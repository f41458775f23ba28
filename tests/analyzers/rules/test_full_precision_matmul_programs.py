"""full_precision_matmul on compiled XLA programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.hlo.text import module_of
from perfscope.analyzers.load import load_one
from perfscope.analyzers.rules import load_rule
from tests.hlo_build import GPU, corpus_module, hlo_module, hlo_trace

RULE = load_rule("full_precision_matmul")

HIGHEST = ", operand_precision={highest,highest}"
CPU = 'backend_config={"outer_dimension_partitions":["2"]}'
"""What marks a program as compiled for the CPU."""
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
    """A product [size, inner] x [inner, inner] beside one of [inner, inner] x [inner, beside] that asks for nothing."""
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


@pytest.mark.parametrize("asked", [HIGHEST, ", operand_precision={default,highest}", ", algorithm=dot_f32_f32_f32"])
@pytest.mark.parametrize("fused", [False, True])
def test_float32_in_full_precision_is_flagged_once_with_its_line_and_time(asked: str, fused: bool):
    outcome = _judge(asked, fused=fused)
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis) == ("flagged", "float32 matrix products", "modelled")
    assert finding.where.label() == "/home/me/mlp.py:6"
    assert finding.cost_ns == pytest.approx(SAVED_NS, rel=1e-3)
    assert finding.severity == "medium"  # of an assumed device
    assert "(assumed)" in finding.title
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
    assert "compiled for a CPU here" in finding.title


def test_on_a_cpu_the_threshold_is_one_percent_of_the_arithmetic():
    """64 x 64 x 64 of it beside 64 x 64 x 6336."""
    assert _judge(HIGHEST, size=64, inner=64, beside=6336, config=CPU).status == "flagged"
    assert _judge(HIGHEST, size=63, inner=64, beside=6336, config=CPU).status == "clean"


def test_float64_on_a_cpu_is_named_where_the_program_is_of_another_type():
    """[64, 64] x [64, 64] in float64 beside [64, 64] x [64, beside]: half of the arithmetic, and less."""
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


@pytest.mark.jax
def test_the_workload_is_flagged_at_its_defect_and_not_without_it():
    jax = pytest.importorskip("jax")
    from perfscope.workloads.jax import attention, training
    from perfscope.workloads.jax.options import Options

    source = Path(training.__file__).read_text().splitlines()
    (line,) = [number for number, text in enumerate(source, 1) if 'precision="highest"' in text and "# defect:" in text]
    found = {}
    for defects in (frozenset({"fp32"}), frozenset[str]()):
        options = Options(variant="blocked", size=attention.SIZES["cpu"], defects=defects)
        model = training.LanguageModel(attention.Block, options)
        tokens = jax.ShapeDtypeStruct((options.size.batch, options.size.seq + 1), "int32")
        text = jax.jit(training.step_of(model)).lower(training.start(model), tokens).compile().as_text()
        found[defects] = judge(RULE, hlo_trace(module_of(text.splitlines(), "step.hlo.txt")))
    assert [one.status for one in found.values()] == ["flagged", "clean"]
    (finding,) = found[frozenset({"fp32"})].findings
    assert (Path(finding.where.file or "").name, finding.where.line) == ("training.py", line)
    assert len(finding.evidence) == 3  # forward, and the gradients of its two factors
