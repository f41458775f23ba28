from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.parse.text import module_of
from perfscope.analyzers.readers.load import load_one
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Finding, Outcome
from tests.build import EVERYTHING, TraceBuilder
from tests.hlo_build import GPU, corpus_module, hlo_module, hlo_trace

RULE = load_rule("dense_expert_compute")

RAGGED = "jit(step)/jvp(experts)/ragged_dot_general"
FACTORS = "lhs_contracting_dims={1,2}, rhs_contracting_dims={0,1}"


CPU = 'backend_config={"outer_dimension_partitions":["2"]}'
"""Marker of a program compiled for the CPU."""


def experts(
    path: str = RAGGED, *, groups: int = 4, other: int = 0, scheduled: bool = True, config: str = CPU
) -> HloModule:
    """Rows [256, g, 64], masked for every group, times matrices [g, 64, 32]; ``other``: more products of
    [256, 64] and [64, 32]."""
    meta = f'metadata={{op_name="{path}" source_file="/home/me/moe.py" source_line=111}}'
    more = "".join(
        f"  %o{index} = f32[256,32] dot(%rows2, %w2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}\n"
        for index in range(other)
    )
    return hlo_module(
        f"ENTRY %main () -> f32[] {{\n  %rows = f32[256,{groups},64] parameter(0)\n"
        f"  %w = f32[{groups},64,32] parameter(1)\n  %rows2 = f32[256,64] parameter(2)\n"
        f"  %w2 = f32[64,32] parameter(3)\n{more}"
        f"  ROOT %d = f32[256,32] dot(%rows, %w), {FACTORS}, {meta}, {config}\n}}",
        scheduled=scheduled,
    )


def _judge_module(module: HloModule) -> Outcome:
    return judge(RULE, hlo_trace(module))


def test_all_experts_for_every_token_are_flagged():
    outcome = _judge_module(experts())
    (finding,) = outcome.findings
    assert (outcome.status, finding.basis, finding.cost_ns) == ("flagged", "structural", None)
    assert finding.where.label() == "/home/me/moe.py:111"
    row = finding.evidence[0]
    assert (row["groups"], row["gflops"]) == (4, 2 * 256 * 4 * 64 * 32 / 1e9)
    assert row["wasted_gflops"] == pytest.approx(0.75 * 2 * 256 * 4 * 64 * 32 / 1e9)
    assert "with all 4 matrices" in finding.detail


def test_on_a_gpu_it_has_a_time():
    """Bound by memory on an H100 (3,352 GB/s): what goes is three of the four copies of the rows."""
    (finding,) = _judge_module(experts(config=GPU)).findings
    assert finding.basis == "modelled"
    assert finding.cost_ns == round(0.75 * 256 * 4 * 64 * 4 / 3.352e3)
    assert "(assumed)" in finding.detail


def test_the_threshold_is_a_twentieth_of_masked_arithmetic():
    """Wasted 3 of (4 + n) products."""
    assert _judge_module(experts(other=56)).status == "flagged"
    assert _judge_module(experts(other=57)).status == "clean"


def test_a_product_that_is_not_ragged_is_clean():
    assert _judge_module(experts("jit(step)/jvp(experts)/dot_general")).status == "clean"


def test_one_expert_wastes_nothing_but_the_shapes_do_not_tell():
    outcome = _judge_module(experts(groups=1))
    assert (outcome.status, "do not tell" in (outcome.reason or "")) == ("abstained", True)


MASKED = f"""
    %mask (x: f32[256,64], lo: s32[4], hi: s32[4]) -> f32[256,256] {{
      %x = f32[256,64] parameter(0)
      %lo = s32[4] parameter(1)
      %hi = s32[4] parameter(2)
      %at = s32[4,256,64] iota(), iota_dimension=1
      %from = s32[4,256,64] broadcast(%lo), dimensions={{0}}
      %to = s32[4,256,64] broadcast(%hi), dimensions={{0}}
      %after = pred[4,256,64] compare(%from, %at), direction=LE
      %before = pred[4,256,64] compare(%at, %to), direction=LT
      %both = pred[4,256,64] and(%after, %before)
      %rows = f32[4,256,64] broadcast(%x), dimensions={{1,2}}
      %zero = f32[] constant(0)
      %zeros = f32[4,256,64] broadcast(%zero), dimensions={{}}
      %kept = f32[4,256,64] select(%both, %rows, %zeros)
      %turned = f32[256,4,64] transpose(%kept), dimensions={{1,0,2}}
      ROOT %flat = f32[256,256] bitcast(%turned)
    }}
    ENTRY %main () -> f32[256,32] {{
      %x = f32[256,64] parameter(0)
      %lo = s32[4] parameter(1)
      %hi = s32[4] parameter(2)
      %w = f32[256,32] parameter(3)
      %m = f32[256,256] fusion(%x, %lo, %hi), kind=kLoop, calls=%mask, {GPU}
      ROOT %d = f32[256,32] dot(%m, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, NAMED
    }}
"""


def test_a_masked_copy_for_every_expert_is_known_by_its_mask():
    named = 'metadata={op_name="jit(step)/dot_general" source_file="/home/me/moe.py" source_line=54}'
    (finding,) = _judge_module(hlo_module(MASKED.replace("NAMED", named))).findings
    assert (finding.evidence[0]["groups"], finding.where.label()) == (4, "/home/me/moe.py:54")


@pytest.mark.parametrize(
    ("spelled", "instead"),
    [
        ("%both = pred[4,256,64] and(%after, %before)", "%both = pred[4,256,64] or(%after, %before)"),
        ("compare(%at, %to)", "compare(%to, %from)"),
        ("broadcast(%x), dimensions={1,2}", "parameter(3)"),
    ],
)
def test_masks_that_choose_no_expert_are_clean(spelled: str, instead: str):
    """Masks of padding and of causality compare positions with positions, or mask what was never copied."""
    assert spelled in MASKED
    assert _judge_module(hlo_module(MASKED.replace(spelled, instead).replace(", NAMED", ""))).status == "clean"


def test_a_grouped_kernel_is_clean():
    text = f"""
        ENTRY %main (x: f32[256,64], w: f32[4,64,32]) -> f32[256,32] {{
          %x = f32[256,64] parameter(0)
          %w = f32[4,64,32] parameter(1)
          ROOT %k = f32[256,32] custom-call(%x, %w), custom_call_target="gmm", metadata={{op_name="{RAGGED}"}}, {GPU}
        }}
    """
    assert _judge_module(hlo_module(text)).status == "clean"


def test_masked_products_that_cannot_be_judged_abstain():
    assert _judge_module(experts(scheduled=False)).status == "abstained"
    assert judge(RULE, TraceBuilder(recorded=EVERYTHING - {"hlo"}).build()).status == "abstained"


@pytest.mark.corpus
def test_a_real_mixture_of_8_experts_by_hand(corpus: Path):
    findings = _judge_module(corpus_module(corpus / "aot" / "gpu_moe_ragged.hlo.txt.gz")).findings
    assert {one.where.label() for one in findings} == {"/home/user/workload/wl.py:111", "/home/user/workload/wl.py:112"}
    for finding in findings:
        assert len(finding.evidence) == 3  # forward, and the gradients of rows and matrices
        assert finding.basis == "modelled"
        assert finding.cost_ns is not None
        for row in finding.evidence:
            assert (row["groups"], row["gflops"]) == (8, 8 * 2 * 1024 * 64 * 128 / 1e9)


@pytest.mark.corpus
def test_a_program_without_experts_is_clean(corpus: Path):
    assert _judge_module(corpus_module(corpus / "aot" / "gpu_attn_naive.hlo.txt.gz")).status == "clean"


SUBJECT = "rows selected by a matrix product"

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


def _judge_text(text: str = PROGRAM, *, config: str = CPU, beside: int = 16, scheduled: bool = True) -> Outcome:
    for key, value in {"BESIDE": str(beside), "FACTORS": DIMS, "META": META, "CONFIG": config}.items():
        text = text.replace(key, value)
    return judge(RULE, hlo_trace(hlo_module(text, scheduled=scheduled)))


def test_an_embedding_by_product_is_flagged_with_its_line():
    (finding,) = _judge_text().findings
    assert (finding.subject, finding.basis, finding.cost_ns) == (SUBJECT, "structural", None)
    assert finding.where.label() == "/home/me/model.py:7"
    assert "compiled for a CPU here" in finding.detail
    (row,) = finding.evidence
    flops = 2 * ROWS * WORDS * FEATURES
    assert (row["gflops"], row["most_nonzero_share"]) == (flops / 1e9, 1 / WORDS)
    assert row["wasted_gflops"] == (flops - 2 * ROWS * FEATURES) / 1e9
    assert row["rows_bytes"] == 2 * 4 * ROWS * FEATURES  # each row read and written


def test_on_a_gpu_it_saves_the_time_beyond_moving_the_rows():
    """Bound by memory on an H100 (3,352 GB/s): the one-hot matrix and the table are read, the rows written."""
    (finding,) = _judge_text(config=GPU).findings
    moved = 4 * (ROWS * WORDS + WORDS * FEATURES + ROWS * FEATURES)
    assert finding.basis == "modelled"
    assert finding.cost_ns == round((moved - 2 * 4 * ROWS * FEATURES) / 3.352e3)
    assert "(assumed)" in finding.detail


def test_the_threshold_is_a_twentieth_of_one_hot_arithmetic():
    """1,023 of 1,024 parts of 256 columns are wasted, with as many other columns as it takes."""
    most = int(FEATURES * (1 - 1 / WORDS) / 0.05 - FEATURES)
    assert _judge_text(beside=most - 8).status == "flagged"
    assert _judge_text(beside=most + 8).status == "clean"


@pytest.mark.parametrize(
    ("spelled", "instead"),
    [
        ("direction=EQ", "direction=GE"),  # a mask of causality, lower triangle
        ("%wanted, %at", "%wanted, %wanted"),  # the same index everywhere
        ("iota_dimension=1", "iota_dimension=0"),  # positions of rows: each compared with its own index
        ("convert(%same)", "broadcast(%one), dimensions={}"),
    ],
)
def test_masks_that_are_not_one_hot_are_clean(spelled: str, instead: str):
    assert spelled in PROGRAM
    text = PROGRAM.replace(spelled, instead).replace("%at =", "%one = f32[] constant(1)\n      %at =", 1)
    assert _judge_text(text).status == "clean"


HOT = "%c = f32[512,1024] convert(%same)\n      "


@pytest.mark.parametrize(
    ("made", "share"),
    [
        ("ROOT %h = f32[512,1024] negate(%c)", 1 / WORDS),
        ("ROOT %h = f32[512,1024] add(%c, %c)", 2 / WORDS),
        ("%t = f32[1024,512] transpose(%c), dimensions={1,0}\n      ROOT %h = f32[512,1024] bitcast(%t)", 1 / WORDS),
        ("ROOT %h = f32[512,1024] multiply(%c, %c)", 1 / WORDS),
        (
            "%half = f32[512,512] slice(%c), slice={[0:512], [0:512]}\n"
            "      ROOT %h = f32[512,1024] broadcast(%half), dimensions={0,1}", 2 / WORDS,
        ),
    ],
)  # fmt: skip
def test_the_share_that_is_not_zero_is_counted_from_the_construction(made: str, share: float):
    text = PROGRAM.replace("ROOT %h = f32[512,1024] convert(%same)", HOT + made)
    (finding,) = _judge_text(text).findings
    assert finding.evidence[0]["most_nonzero_share"] == share


@pytest.mark.parametrize(("rest", "status"), [("0", "flagged"), ("-1e+30", "clean"), ("-inf", "clean")])
def test_a_mask_selects_only_where_it_leaves_zeros(rest: str, status: str):
    chosen = (
        f"%rest = f32[] constant({rest})\n      %rests = f32[512,1024] broadcast(%rest), dimensions={{}}\n"
        "      %w = f32[] constant(3)\n      %ws = f32[512,1024] broadcast(%w), dimensions={}\n"
        "      ROOT %h = f32[512,1024] select(%same, %ws, %rests)"
    )
    assert _judge_text(PROGRAM.replace("ROOT %h = f32[512,1024] convert(%same)", chosen)).status == status


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
    assert _judge_text(PROGRAM.replace(spelled, instead)).status == "clean"


def test_a_product_on_tpu_is_a_convolution_and_may_be_meant():
    text = PROGRAM.replace(
        "ROOT %d = f32[512,256] dot(%one_hot, %table), FACTORS",
        "ROOT %d = f32[512,256] convolution(%one_hot, %table), dim_labels=bf_io->bf",
    )
    tiled = text.replace("f32[512,1024] fusion(", "f32[512,1024]{1,0:T(8,128)} fusion(")
    (finding,) = _judge_text(tiled, config=TPU).findings
    assert (finding.subject, finding.basis) == (SUBJECT, "modelled")
    assert "measure both" in finding.advice


def test_one_hot_products_that_cannot_be_judged_abstain():
    assert _judge_text(scheduled=False).status == "abstained"


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
            assert row["most_nonzero_share"] == 2 / 160  # the larger of the bounds by expert and by place


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
@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_workload_is_flagged_at_its_defects_and_its_twin_is_clean(dtype: str):
    jax = pytest.importorskip("jax")
    from perfscope.workloads.jax import moe
    from perfscope.workloads.jax.training import LanguageModel, start, step_of
    from perfscope.workloads.options import Options

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
