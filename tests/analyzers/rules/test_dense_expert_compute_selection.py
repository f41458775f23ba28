"""dense_expert_compute on products with one-hot matrices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.finding import Finding, Outcome
from perfscope.analyzers.hlo.text import module_of
from perfscope.analyzers.load import load_one
from perfscope.analyzers.rules import load_rule
from tests.hlo_build import GPU, hlo_module, hlo_trace

RULE = load_rule("dense_expert_compute")
SUBJECT = "rows selected by a matrix product"

CPU = 'backend_config={"outer_dimension_partitions":["2"]}'
TPU = 'backend_config={"window_config":{"kernel_window_bounds":["1"]}}'
DIMS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
META = 'metadata={op_name="jit(step)/embed/dot_general" source_file="/home/me/model.py" source_line=7}'

ROWS, WORDS, FEATURES = 512, 1024, 256

PROGRAM = """
    %hot (i: s32[512]) -> f32[512,1024] {
      %i = s32[512] parameter(0)
      %at = s32[512,1024] iota(), iota_dimension=1
      %wanted = s32[512,1024] broadcast(%i), dimensions={0}
      %same = pred[512,1024] compare(%wanted, %at), direction=EQ
      ROOT %h = f32[512,1024] convert(%same)
    }
    ENTRY %main (i: s32[512], table: f32[1024,256]) -> f32[512,256] {
      %i = s32[512] parameter(0)
      %table = f32[1024,256] parameter(1)
      %x = f32[512,1024] parameter(2)
      %y = f32[1024,BESIDE] parameter(3)
      %beside = f32[512,BESIDE] dot(%x, %y), FACTORS
      %one_hot = f32[512,1024] fusion(%i), kind=kLoop, calls=%hot, CONFIG
      ROOT %d = f32[512,256] dot(%one_hot, %table), FACTORS, META
    }
"""


def _judge(text: str = PROGRAM, *, config: str = CPU, beside: int = 16, scheduled: bool = True) -> Outcome:
    for key, value in {"BESIDE": str(beside), "FACTORS": DIMS, "META": META, "CONFIG": config}.items():
        text = text.replace(key, value)
    return judge(RULE, hlo_trace(hlo_module(text, scheduled=scheduled)))


def test_an_embedding_by_product_is_flagged_with_its_line():
    (finding,) = _judge().findings
    assert (finding.subject, finding.basis, finding.cost_ns) == (SUBJECT, "structural", None)
    assert finding.where.label() == "/home/me/model.py:7"
    assert "compiled for a CPU here" in finding.title
    (row,) = finding.evidence
    flops = 2 * ROWS * WORDS * FEATURES
    assert (row["gflops"], row["most_nonzero_share"]) == (flops / 1e9, 1 / WORDS)
    assert row["wasted_gflops"] == (flops - 2 * ROWS * FEATURES) / 1e9
    assert row["rows_bytes"] == 2 * 4 * ROWS * FEATURES  # each row read and written


def test_on_a_gpu_it_saves_the_time_beyond_moving_the_rows():
    """Bound by memory on an H100 (3,352 GB/s): the one-hot matrix and the table are read, the rows written."""
    (finding,) = _judge(config=GPU).findings
    moved = 4 * (ROWS * WORDS + WORDS * FEATURES + ROWS * FEATURES)
    assert finding.basis == "modelled"
    assert finding.cost_ns == round((moved - 2 * 4 * ROWS * FEATURES) / 3.352e3)
    assert "(assumed)" in finding.title


def test_the_threshold_is_a_twentieth_of_the_arithmetic():
    """Wasted are 1,023 of 1,024 parts of 256 columns, beside as many columns as it takes."""
    most = int(FEATURES * (1 - 1 / WORDS) / 0.05 - FEATURES)
    assert _judge(beside=most - 8).status == "flagged"
    assert _judge(beside=most + 8).status == "clean"


@pytest.mark.parametrize(
    ("spelled", "instead"),
    [
        ("direction=EQ", "direction=GE"),  # a mask of causality, lower triangle
        ("%wanted, %at", "%wanted, %wanted"),  # the same index everywhere
        ("iota_dimension=1", "iota_dimension=0"),  # positions of rows: each compared with its own index
        ("convert(%same)", "broadcast(%one), dimensions={}"),
    ],
)
def test_other_masks_are_clean(spelled: str, instead: str):
    assert spelled in PROGRAM
    text = PROGRAM.replace(spelled, instead).replace("%at =", "%one = f32[] constant(1)\n      %at =", 1)
    assert _judge(text).status == "clean"


@pytest.mark.parametrize(("rest", "status"), [("0", "flagged"), ("-1e+30", "clean"), ("-inf", "clean")])
def test_a_mask_selects_only_where_it_leaves_zeros(rest: str, status: str):
    chosen = (
        f"%rest = f32[] constant({rest})\n      %rests = f32[512,1024] broadcast(%rest), dimensions={{}}\n"
        "      %w = f32[] constant(3)\n      %ws = f32[512,1024] broadcast(%w), dimensions={}\n"
        "      ROOT %h = f32[512,1024] select(%same, %ws, %rests)"
    )
    assert _judge(PROGRAM.replace("ROOT %h = f32[512,1024] convert(%same)", chosen)).status == status


@pytest.mark.parametrize(
    ("spelled", "instead"),
    [
        ("broadcast(%i), dimensions={0}", "broadcast(%i), dimensions={3}"),
        ("broadcast(%i), dimensions={0}", "broadcast(%i), dimensions={0,1}"),
        ("broadcast(%i), dimensions={0}", "transpose(%i), dimensions={1}"),
        ("compare(%wanted, %at)", "compare(%i, %at)"),
        ("compare(%wanted, %at)", "compare(%wanted)"),
        ("iota_dimension=1", "iota_dimension=2"),
        ("%one_hot = f32[512,1024] fusion", "%one_hot = f32[512,1024,7] fusion"),
        ("ROOT %h = f32[512,1024] convert(%same)", "ROOT %h = f32[512] reduce(%same), dimensions={1}"),
        ("ROOT %h = f32[512,1024] convert(%same)", "ROOT %h = f32[512,1024] bitcast(%i)"),
        ("ROOT %h = f32[512,1024] convert(%same)", "ROOT %h = f32[512,1024]{3,1} bitcast(%same)"),
    ],
)
def test_nothing_is_concluded_from_what_does_not_fit(spelled: str, instead: str):
    assert spelled in PROGRAM
    assert _judge(PROGRAM.replace(spelled, instead)).status == "clean"


def test_a_product_on_tpu_is_a_convolution_and_may_be_meant():
    text = PROGRAM.replace(
        "ROOT %d = f32[512,256] dot(%one_hot, %table), FACTORS",
        "ROOT %d = f32[512,256] convolution(%one_hot, %table), dim_labels=bf_io->bf",
    )
    tiled = text.replace("f32[512,1024] fusion(", "f32[512,1024]{1,0:T(8,128)} fusion(")
    (finding,) = _judge(tiled, config=TPU).findings
    assert (finding.subject, finding.basis) == (SUBJECT, "modelled")
    assert "measure both" in finding.advice


def test_what_cannot_be_judged_abstains():
    assert _judge(scheduled=False).status == "abstained"


@pytest.mark.corpus
@pytest.mark.parametrize("file", ["gpu_moe_einsum.hlo.txt.gz", "moe_einsum.hlo.pb.gz"])
def test_the_einsums_of_a_real_mixture_by_hand(corpus: Path, file: str):
    """T = 512 tokens, 2 of E = 8 experts each, room C = 160, D = 64 features."""
    findings = judge(RULE, load_one(corpus / "aot" / file)).findings
    assert [one.subject for one in findings] == [SUBJECT] * 2
    found = {one.where.line: one for one in findings}
    assert found.keys() == {92, 97}  # dispatch and combine
    assert [len(found[line].evidence) for line in (92, 97)] == [2, 3]  # with the gradients of the rows, and of weights
    for finding in findings:
        assert (finding.basis, finding.cost_ns is not None) == ("modelled", True)
        for row in finding.evidence:
            assert row["gflops"] == 2 * 512 * 8 * 160 * 64 / 1e9
            assert row["most_nonzero_share"] == 2 / (8 * 160)


@pytest.mark.corpus
def test_maxtext_embeds_and_combines_by_products(corpus: Path):
    findings = judge(RULE, load_one(corpus / "hlo_text" / "Primus__moe_dp1_pp2_ep8.gfx950_after_opt.txt.gz")).findings
    places = {(Path(one.where.file or "").name, one.where.line) for one in findings}
    assert places == {("embeddings.py", 150), ("moe.py", 1460)}
    assert {one.subject for one in findings} == {SUBJECT}


@pytest.mark.corpus
@pytest.mark.parametrize(
    "program",
    ["gpu_moe_ragged", "gpu_attn_naive", "gpu_attn_blocked", "gpu_ssm_seq", "gpu_md_tp", "md_fsdp", "tpu_md_fsdp"],
)
def test_real_programs_that_select_nothing(corpus: Path, program: str):
    outcome = judge(RULE, load_one(corpus / "aot" / f"{program}.hlo.txt.gz"))
    assert SUBJECT not in {one.subject for one in outcome.findings}


def _compiled(function: Callable[..., Any], *shapes: tuple[tuple[int, ...], str]) -> tuple[Finding, ...]:
    jax = pytest.importorskip("jax")
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    text = jax.jit(function).lower(*arrays).compile().as_text()
    outcome = judge(RULE, hlo_trace(module_of(text.splitlines(), "made.hlo.txt")))
    assert outcome.status != "abstained"
    return outcome.findings


def _loss(select: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """Value and gradients of an embedding and a head."""
    jax = pytest.importorskip("jax")

    def loss(table: Any, head: Any, tokens: Any) -> Any:
        return jax.numpy.tanh(select(table, tokens) @ head).sum()

    return lambda table, head, tokens: jax.value_and_grad(loss, (0, 1))(table, head, tokens)


SHAPES = (((512, 128), "float32"), ((128, 64), "float32"), ((256,), "int32"))


@pytest.mark.jax
def test_jax_one_hot_embedding_is_flagged_forward_and_backward():
    jax = pytest.importorskip("jax")
    (finding,) = _compiled(_loss(lambda table, tokens: jax.nn.one_hot(tokens, len(table)) @ table), *SHAPES)
    assert (finding.subject, finding.where.file) == (SUBJECT, __file__)
    assert len(finding.evidence) == 2


@pytest.mark.jax
@pytest.mark.parametrize(
    "select",
    [lambda table, tokens: table[tokens], lambda table, tokens: table.take(tokens, axis=0, mode="clip")],
    ids=["index", "take"],
)
def test_jax_gathers_are_clean(select: Callable[[Any, Any], Any]):
    assert _compiled(_loss(select), *SHAPES) == ()


@pytest.mark.jax
def test_jax_one_hot_labels_are_clean():
    jax = pytest.importorskip("jax")

    def loss(head: Any, x: Any, labels: Any) -> Any:
        told = jax.nn.one_hot(labels, head.shape[1])
        return -(told * jax.nn.log_softmax(x @ head)).sum(-1).mean()

    shapes = (((128, 512), "float32"), ((256, 128), "float32"), ((256,), "int32"))
    assert _compiled(lambda *values: jax.value_and_grad(loss, (0, 1))(*values), *shapes) == ()


@pytest.mark.jax
def test_jax_causal_attention_is_clean():
    jax = pytest.importorskip("jax")

    def attend(q: Any, k: Any, v: Any) -> Any:
        size = len(q)
        mask = jax.numpy.arange(size)[:, None] >= jax.numpy.arange(size)
        return (jax.nn.softmax(jax.numpy.where(mask, q @ k.T, -jax.numpy.inf)) @ v).sum()

    assert _compiled(jax.grad(attend, (0, 1, 2)), *[((256, 64), "float32")] * 3) == ()


@pytest.mark.jax
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.slow), "bfloat16"])
def test_the_workload_is_flagged_at_its_defects_and_its_twin_is_clean(dtype: str):
    jax = pytest.importorskip("jax")
    from perfscope.workloads.jax import moe
    from perfscope.workloads.jax.options import Options
    from perfscope.workloads.jax.training import LanguageModel, start, step_of

    source = Path(moe.__file__).read_text().splitlines()
    lines = {number for number, text in enumerate(source, 1) if "einsum" in text and "# defect:" in text}
    assert len(lines) == 2
    for variant, expected in (("einsum", lines), ("scatter", set[int]())):
        model = LanguageModel(moe.Block, Options(variant=variant, size=moe.SIZES["cpu"], dtype=dtype))
        tokens = jax.ShapeDtypeStruct((model.options.size.batch, model.options.size.seq + 1), "int32")
        text = jax.jit(step_of(model)).lower(start(model), tokens).compile().as_text()
        outcome = judge(RULE, hlo_trace(module_of(text.splitlines(), "step.hlo.txt")))
        assert {one.where.line for one in outcome.findings} == expected
        assert {Path(one.where.file or "").name for one in outcome.findings} <= {"moe.py"}
