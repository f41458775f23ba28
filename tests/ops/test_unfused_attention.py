"""Written-out attention from the op graph and from a bare trace; its fused twin and a gate stay clean."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.devices import find_device
from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.readers.load import load_all
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Finding, Outcome
from perfscope.model.op_graph import OpGraph
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder
from tests.hlo_build import GPU, hlo_module, hlo_trace, recorded_trace
from tests.ops.attention_programs import (
    ENTRY,
    EXPONENTIAL,
    LOOP,
    MAXIMUM,
    PLACE,
    RESULT,
    SOFTMAX,
    SOFTMAX_CALL,
    SUM,
    VALUE_PRODUCT,
    attention_program,
)
from tests.rules import judged_by

HEADS, LENGTH, WIDTH = 8, 512, 32


outcome = judged_by("unfused_attention")


def attention_graph(*, softmax: str = "_softmax", weights: bool = False, dtype: str = "float32", ballast: int = 0,
              dropout: bool = False) -> OpGraph:  # fmt: skip
    g = GraphBuilder()
    scores = (HEADS, LENGTH, LENGTH)
    q, k, v = (g.input((HEADS, LENGTH, WIDTH), dtype, parameter=weights and i > 0) for i in range(3))
    s = g.op("bmm", [q, k], shape=scores, line=10, sequence=1)
    s = g.op("div", [g.view(s, (2, HEADS // 2, LENGTH, LENGTH))], line=11, sequence=2)
    s = g.op(softmax, [s], line=12, sequence=3, module="blocks.0.attn")
    if dropout:
        s = g.op("mul", [s, g.op("bernoulli_", [g.op("zeros", [], shape=s and scores)], line=13)], line=13)
    y = g.op("bmm", [g.view(s, scores), v], shape=(HEADS, LENGTH, WIDTH), line=14, sequence=4)
    grad = g.op("bmm", [y, v], shape=scores, phase="backward", line=14, sequence=4)
    grad = g.op("mul", [grad, s], phase="backward", line=12, sequence=3)
    if ballast:
        g.op("mm", [g.input((ballast,))], shape=(1,))
    return g.graph(live=[grad])


def traced(graph: OpGraph | None, *, step_us: float = 1000, softmax: str = "aten::_softmax",
           recorded: frozenset[str] = EVERYTHING, around: str | None = None,
           matmul: str = "aten::bmm") -> Trace:  # fmt: skip
    """A step whose score ops take 5 + 40 us forward and 10 us backward."""
    t = TraceBuilder(op_graph=graph, recorded=recorded)
    t.step(0, 0, step_us)
    t.python("model.py(9): attend", 0, 90)
    if around:
        t.op(around, 0.5, 80)
    ops = [(matmul, [[8, 512, 32], [8, 32, 512]], 300), ("aten::div", [[8, 512, 512]], 5),
           (softmax, [[8, 512, 512]], 40), (matmul, [[8, 512, 512], [8, 512, 32]], 300),
           ("autograd::engine::evaluate_function: BmmBackward0", [], 0), ("aten::bmm", [[8, 512, 32]], 100),
           ("autograd::engine::evaluate_function: SoftmaxBackward0", [], 0), ("aten::mul", [[8, 512, 512]], 10),
           ("aten::mm", [[4]], 0)]  # fmt: skip
    sequences = [1, 2, 3, 4, 4, -1, 3, -1, -1]
    at = 100.0
    for number, ((name, shapes, us), sequence) in enumerate(zip(ops, sequences, strict=True)):
        node = name.startswith("autograd")
        start = 1 + 8 * number
        t.op(name, start, start + (15 if node else 6), external_id=number, sequence=sequence,
             forward_thread=-1 if sequence < 0 else 1 if node else 0, shapes=json.dumps(shapes),
             dtypes=json.dumps(["float"] * len(shapes)))  # fmt: skip
        if us:
            t.kernel(name, at, at + us, external_id=number)
            at += us
    return t.build()


def test_flagged_from_the_graph_with_bytes_time_and_line():
    (finding,) = outcome(traced(attention_graph())).findings
    assert finding.basis == "modelled"
    assert (finding.where.line, finding.where.module) == (10, "blocks.*.attn")
    assert finding.cost_ns == finding.cost_ns_per_step == (5 + 40 + 10) * 1000
    assert finding.cost_bytes == 7 * HEADS * LENGTH * LENGTH * 4
    assert finding.evidence[0]["ops"] == "div -> _softmax -> mul"
    assert "scaled_dot_product_attention(q, k, v" in finding.advice


def test_a_graph_without_times_gives_bytes_and_no_time():
    t = TraceBuilder(op_graph=attention_graph())
    t.op("aten::relu", 0, 1)
    (finding,) = outcome(t.build()).findings
    assert finding.basis == "structural"
    assert finding.cost_ns is None
    assert finding.cost_ns is None


def test_just_below_the_threshold_is_clean():
    assert outcome(traced(attention_graph(), step_us=5_600)).status == "clean"
    assert outcome(traced(attention_graph(), step_us=5_400)).status == "flagged"
    assert outcome(traced(None, step_us=5_600)).status == "clean"
    assert outcome(traced(None, step_us=5_400)).status == "flagged"


def test_a_small_share_of_the_bytes_is_clean_where_no_time_is_known():
    assert outcome(TraceBuilder(op_graph=attention_graph(ballast=4_000_000_000)).build()).status == "clean"


@pytest.mark.parametrize("graph", [attention_graph(weights=True), attention_graph(softmax="relu")])
def test_a_gate_between_weights_and_a_product_without_softmax_are_clean(graph: OpGraph):
    assert outcome(traced(graph)).status == "clean"


def test_the_fused_twin_is_clean():
    g = GraphBuilder()
    q = g.input((2, 8, 128, 32))
    g.op("_scaled_dot_product_flash_attention_for_cpu", [q, q, q], shape=(2, 8, 128, 32))
    assert outcome(TraceBuilder(op_graph=g.graph()).build()).status == "clean"
    assert outcome(traced(None, softmax="aten::relu")).status == "clean"


def test_the_dropout_mask_belongs_to_the_scores():
    (finding,) = outcome(TraceBuilder(op_graph=attention_graph(dropout=True)).build()).findings
    assert finding.evidence[0]["ops"] == "div -> _softmax -> bernoulli_ -> mul -> mul"


def test_the_math_fallback_of_sdpa_says_why_where_it_shows():
    (finding,) = outcome(traced(attention_graph(softmax="_safe_softmax"))).findings
    assert finding.subject == "scaled_dot_product_attention in its math fallback"
    assert "does not show why" in finding.detail
    (double,) = outcome(
        TraceBuilder(op_graph=attention_graph(softmax="_safe_softmax", dtype="float64")).build()
    ).findings
    assert "float64 has no fused kernel" in double.detail
    (dropped,) = outcome(TraceBuilder(op_graph=attention_graph(softmax="_safe_softmax", dropout=True)).build()).findings
    assert "no dropout" in dropped.detail


def test_flagged_from_a_bare_trace_with_the_backward_and_without_the_matmuls():
    (finding,) = outcome(traced(None)).findings
    assert finding.cost_ns == 55_000
    assert finding.basis == "modelled"
    assert (finding.where.file, finding.where.line) == ("model.py", 9)
    assert finding.evidence[0]["ops"] == "div -> _softmax -> SoftmaxBackward0"
    (fallback,) = outcome(traced(None, around="aten::_scaled_dot_product_attention_math")).findings
    assert fallback.subject == "scaled_dot_product_attention in its math fallback"


def test_a_gate_with_plain_matmuls_is_clean_in_a_bare_trace():
    assert outcome(traced(None, matmul="aten::mm")).status == "clean"


def test_abstains_without_graph_and_shapes():
    told = outcome(traced(None, recorded=EVERYTHING - {"shapes"}))
    assert told.status == "abstained"
    assert "perfscope run" in (told.reason or "")


RULE = load_rule("unfused_attention")

SCORES = 4 * 8 * 256 * 256
"""Bytes of the scores of ``attn_naive``."""


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("file", "label", "times", "moved", "phases"),
    [
        # Scores 2 MiB: eleven times through memory, forward and backward.
        ("aot/attn_naive.hlo.pb.gz", "wl.py:9", 1, 11 * SCORES, {"forward": 1}),
        ("aot/gpu_attn_naive.hlo.txt.gz", "wl.py:9", 1, 11 * SCORES, {"forward": 1}),
        # MaxText with its own dot product attention: 8 layers in bfloat16, scores recomputed by the backward.
        ("hlo_pb/JAX-Toolbox__module_0016.jit_train_step.sm_9.0_gpu_after_optimizations.hlo.pb.xz", "attentions.py:340",
         8, (6 + 16) * 8 * 16 * 2048 * 2048 * 2, {"forward": 8, "recompute": 8}),
    ],
)  # fmt: skip
def test_programs_that_write_attention_out(
    file: str, label: str, times: int, moved: int, phases: dict[str, int], corpus: Path
) -> None:
    (trace,) = load_all(corpus / file)
    (finding,) = judge(RULE, trace).findings
    assert (finding.cost_bytes, finding.where.label().rpartition("/")[2]) == (moved, label)
    assert finding.basis == "modelled"
    assert ("once" if times == 1 else f"{times} times") in finding.title
    found: Counter[str] = Counter()
    for row in finding.evidence:
        found[str(row["phase"])] += int(row["times"] or 0)
    assert found == phases


@pytest.mark.corpus
@pytest.mark.parametrize(
    "file",
    [
        "aot/attn_blocked.hlo.pb.gz", "aot/gpu_attn_blocked.hlo.txt.gz", "aot/synth_attn_blocked.xplane.pb.gz",
        # No attention in these: mixtures of experts, scans, and layers of matrix products.
        "aot/gpu_moe_einsum.hlo.txt.gz", "aot/gpu_ssm_assoc.hlo.txt.gz", "aot/gpu_md_fsdp.hlo.txt.gz",
        "aot/tpu_md_tp.hlo.txt.gz", "aot/gpu_remat_h100.hlo.txt.gz",
        # Transformer Engine's kernels, and the softmax of a router and of the loss.
        "hlo_text/Primus__moe_dp1_pp2_ep8.gfx950_after_opt.txt.gz",
    ],
)  # fmt: skip
def test_programs_without_written_out_attention_are_clean(file: str, corpus: Path) -> None:
    assert [judge(RULE, trace).status for trace in load_all(corpus / file)] == ["clean"]


def _judge(*modules: HloModule) -> Outcome:
    return judge(RULE, hlo_trace(*modules))


def _finding(*modules: HloModule) -> Finding:
    (finding,) = _judge(*modules).findings
    return finding


def _bandwidth() -> float:
    device = find_device("NVIDIA H100 80GB HBM3")
    assert device is not None
    return device.memory_bandwidth


def test_written_out_attention_is_flagged_with_the_traffic_of_its_scores() -> None:
    finding = _finding(attention_program())
    moved = 4 * SCORES  # written, read and written by the softmax, read
    assert (finding.subject, finding.basis, finding.cost_bytes) == ("attention written out", "modelled", moved)
    assert finding.cost_ns == round(1e9 * moved / _bandwidth())
    assert (finding.where.label(), finding.severity) == ("/home/me/model.py:7", "medium")
    assert "written out once per run" in finding.title
    assert "(assumed)" in finding.detail
    assert "implementation='cudnn'" in finding.advice
    (row,) = finding.evidence
    assert (row["score_shape"], row["times"], row["launches"]) == ("8x256x256", 1, 3)
    assert (row["between_kernels_bytes"], row["q_k_v_o_bytes"]) == (moved, 4 * 4 * 8 * 256 * 64)


def test_scores_smaller_than_what_any_attention_moves_are_clean() -> None:
    assert _judge(attention_program(length=256)).status == "flagged"
    assert _judge(attention_program(length=255)).status == "clean"


def test_less_than_a_hundredth_of_the_programs_bytes_is_clean() -> None:
    def beside(elements: int) -> Outcome:
        ballast = f"%far = f32[{elements}] parameter(4)\n%near = f32[{elements}] negate(%far)\nROOT %out"
        return _judge(attention_program(("ROOT %out", ballast)))

    # Share of all bytes: four times the scores, q, k, v, and o written, read and copied; and the ballast read and
    # written.
    own = 4 * SCORES + 6 * 4 * 8 * 256 * 64
    elements = (100 * 4 * SCORES - own) // 8
    assert beside(elements).status == "flagged"
    assert beside(elements + 1).status == "clean"


def test_a_loop_over_layers_is_no_blocked_attention() -> None:
    finding = _finding(attention_program(entry=LOOP))
    assert (finding.evidence[0]["times"], finding.cost_bytes) == (6, 6 * 4 * SCORES)
    assert "written out 6 times" in finding.title


RUNNING = (MAXIMUM, f"{MAXIMUM.replace('%top =', '%own =')}\n%top = f32[ROWS] maximum(%own, %old)")
RESCALED = (
    RESULT,
    f"%second = f32[ROWS] reduce(%sums, %low), dimensions={{2}}, to_apply=%max\n"
    f"%step = f32[ROWS] subtract(%top, %second)\n%shrink = f32[ROWS] exponential(%step)\n{RESULT}",
)


def test_two_calls_of_one_fusion_count_as_two() -> None:
    (scores,) = [line.strip() for line in ENTRY.splitlines() if "dot(%q, %k)" in line]
    second = [
        scores.replace("%s =", "%s2 =").replace("(%q,", "(%o,"),
        SOFTMAX_CALL.replace("%p =", "%p2 =").replace("%s,", "%s2,"),
        VALUE_PRODUCT.replace("%o =", "%o2 =").replace("%p,", "%p2,"),
        "ROOT %out = f32[QUERIES] copy(%o2)",
    ]
    finding = _finding(attention_program(("ROOT %out = f32[QUERIES] copy(%o)", "\n".join(second))))
    assert (finding.evidence[0]["times"], finding.cost_bytes) == (2, 8 * SCORES)


def test_what_backward_computes_again_is_no_second_finding() -> None:
    """`jax.checkpoint` may give recomputed work the line of its own call."""
    again = PLACE.replace("attend/", "transpose(jvp())/rematted_computation/").replace("=7", "=40")
    (scores,) = [line.strip() for line in ENTRY.splitlines() if "dot(%q, %k)" in line]
    backward = [
        scores.replace("%s =", "%s2 =").replace(PLACE, again).replace("(%q,", "(%o,"),
        SOFTMAX_CALL.replace("%p =", "%p2 =").replace("%s,", "%s2,").replace("%softmax", "%softmax2"),
        VALUE_PRODUCT.replace("%o =", "%o2 =").replace("%p,", "%p2,"),
        "ROOT %out = f32[QUERIES] copy(%o2)",
    ]
    entry = SOFTMAX.replace("%softmax", "%softmax2") + ENTRY
    finding = _finding(attention_program(("ROOT %out = f32[QUERIES] copy(%o)", "\n".join(backward)), entry=entry))
    assert (finding.where.line, finding.cost_bytes) == (7, 8 * SCORES)
    assert "written out once per run" in finding.title
    assert {str(row["phase"]) for row in finding.evidence} == {"forward", "recompute"}


def test_a_running_maximum_is_blocked_attention() -> None:
    assert _judge(attention_program(RUNNING, entry=LOOP)).status == "clean"
    # The same maximum with a limit from outside (an attention sink) is not a running one.
    assert _judge(attention_program(RUNNING)).status == "flagged"
    # In a loop, an input that every iteration passes on unchanged is not a state.
    assert _judge(attention_program(RUNNING, ("%k, %v, %new", "%k, %v, %old"), entry=LOOP)).status == "flagged"


def test_a_rescaled_maximum_is_blocked_attention_that_was_unrolled() -> None:
    assert _judge(attention_program(RESCALED)).status == "clean"


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param([("subtract(%s, %tops)", "multiply(%s, %tops)")], id="no difference with the maximum"),
        pytest.param([("calls=%softmax", "calls=%softmax"), (MAXIMUM, MAXIMUM.replace("%max", "%add"))], id="a mean"),
        pytest.param([(EXPONENTIAL, EXPONENTIAL.replace("exponential", "tanh"))], id="no exponential"),
        pytest.param([(SUM, SUM.replace("%add", "%max"))], id="rows are not summed"),
        pytest.param([(RESULT, "%d = f32[SCORES] divide(%e, %sums)\nROOT %p = f32[SCORES] subtract(%d, %s)")],
                     id="targets subtracted, as in a cross entropy"),
        pytest.param([("dot(%p, %v)", "dot(%s, %v)")], id="the product is not of the probabilities"),
        pytest.param([("-> f32[QUERIES] {\n      %q", "-> f32[SCORES] {\n      %q"),
                      ("ROOT %out = f32[QUERIES] copy(%o)", "%out = f32[QUERIES] copy(%o)\nROOT %same = f32[SCORES] "
                       "bitcast(%p)")], id="the probabilities are wanted"),
    ],
)  # fmt: skip
def test_near_misses_are_clean(changes: list[tuple[str, str]]) -> None:
    assert _judge(attention_program(*changes)).status == "clean"


def test_a_product_along_the_queries_alone_is_clean() -> None:
    """Rows are of 256 keys; a product that sums over 128 others is not attention's."""
    other = (
        "%wide = f32[8,512,128] bitcast(%p)\n%o = f32[8,512,64] dot(%wide, %v), lhs_batch_dims={0}, "
        "rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    )
    changes = [
        (VALUE_PRODUCT, other), ("%v = f32[QUERIES]", "%v = f32[8,128,64]"), ("v: f32[QUERIES]", "v: f32[8,128,64]"),
        ("ROOT %out = f32[QUERIES] copy(%o)", "ROOT %out = f32[8,512,64] copy(%o)"),
    ]  # fmt: skip
    assert _judge(attention_program(*changes)).status == "clean"


def _gate(projected: str) -> HloModule:
    """softmax(x @ a) @ b without batches; ``projected``: what computes x, a and b."""
    text = f"""
        %add (a: f32[], b: f32[]) -> f32[] {{
          %a = f32[] parameter(0)
          %b = f32[] parameter(1)
          ROOT %m = f32[] add(%a, %b)
        }}
        %max (a: f32[], b: f32[]) -> f32[] {{
          %a = f32[] parameter(0)
          %b = f32[] parameter(1)
          ROOT %m = f32[] maximum(%a, %b)
        }}
        ENTRY %main (u: f32[256,32], w: f32[32,32]) -> f32[256,32] {{
          %u = f32[256,32] parameter(0)
          %w = f32[32,32] parameter(1)
          %a = f32[256,32] parameter(2)
          %b = f32[256,32] parameter(3)
          {projected}
          %s = f32[256,256] dot(%x, %y), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}, {PLACE}, {GPU}
          %low = f32[] constant(-inf)
          %zero = f32[] constant(0)
          %top = f32[256] reduce(%s, %low), dimensions={{1}}, to_apply=%max
          %tops = f32[256,256] broadcast(%top), dimensions={{0}}
          %diff = f32[256,256] subtract(%s, %tops)
          %e = f32[256,256] exponential(%diff)
          %sum = f32[256] reduce(%e, %zero), dimensions={{1}}, to_apply=%add
          %sums = f32[256,256] broadcast(%sum), dimensions={{0}}
          %p = f32[256,256] divide(%e, %sums)
          ROOT %o = f32[256,32] dot(%p, %z), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
        }}
    """
    return hlo_module(text)


def test_a_gate_between_weights_is_no_attention_and_one_head_is() -> None:
    product = "= f32[256,32] dot(%u, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    views = "%y = f32[256,32] bitcast(%a)\n%z = f32[256,32] convert(%b)"
    assert _judge(_gate(f"%x {product}\n{views}")).status == "clean"
    assert _judge(_gate(f"%x {product}\n%y {product}\n%z {product}")).status == "flagged"


def test_library_products_count() -> None:
    """cuBLAS: a tuple of the result and scratch memory, dimensions in the configuration."""
    numbers = (
        '"dot_dimension_numbers":{"lhs_contracting_dimensions":["2"],"rhs_contracting_dimensions":["DIM"],'
        '"lhs_batch_dimensions":["0"],"rhs_batch_dimensions":["0"]}'
    )
    call = (
        '%made.NAME = (f32[SHAPE], s8[4194304]) custom-call(OPERANDS), custom_call_target="__cublas$gemm", '
        f'{PLACE}, backend_config={{"gemm_backend_config":{{{numbers}}}}}\n'
        "%NAME = f32[SHAPE] get-tuple-element(%made.NAME), index=0"
    )

    def product(name: str, shape: str, operands: str, dim: str) -> str:
        made = call.replace("NAME", name).replace("SHAPE", shape)
        return made.replace("OPERANDS", operands).replace("DIM", dim)

    lines = ENTRY.splitlines()
    (scores,) = [line.strip() for line in lines if "dot(%q, %k)" in line]
    finding = _finding(
        attention_program(
            (scores, product("s", "SCORES", "%q, %k", "2")), (VALUE_PRODUCT, product("o", "QUERIES", "%p, %v", "1"))
        )
    )
    assert finding.cost_bytes == 4 * SCORES


def test_on_a_cpu_it_says_what_it_would_be_on_a_gpu() -> None:
    finding = _finding(replace(attention_program(), platform="cpu"))
    assert (finding.basis, finding.severity, finding.cost_ns, finding.cost_bytes) == ("structural", "low", None, None)
    assert "CPU here" in finding.detail


def test_on_a_tpu_values_in_vector_memory_move_nothing() -> None:
    tpu = replace(attention_program(), platform="tpu")
    assert "flash_attention" in _finding(tpu).advice
    # Layout S(1) is vector memory: only what the softmax writes is left.
    on_chip = attention_program(("%s = f32[SCORES] dot", "%s = f32[8,256,256]{2,1,0:S(1)} dot"))
    assert _finding(replace(on_chip, platform="tpu")).cost_bytes == 2 * SCORES


def test_no_more_is_saved_than_was_measured() -> None:
    def recorded(softmax_us: float) -> Finding:
        end = 2 + softmax_us
        ops = [("s", 0, 1), ("p", 2, end), ("o", end, end + 1)]
        (finding,) = judge(
            RULE,
            recorded_trace(
                attention_program(), ops=ops, device="NVIDIA H100 80GB HBM3", steps=[(0, 200)], runs=[1] * 3
            ),
        ).findings
        return finding

    modelled = round(1e9 * 4 * SCORES / _bandwidth())
    assert recorded(softmax_us=100).cost_ns_per_step == modelled
    assert "(assumed)" not in recorded(softmax_us=100).detail
    assert recorded(softmax_us=0.1).cost_ns_per_step == 2100


def test_on_a_device_without_known_peaks_there_are_bytes_and_no_time() -> None:
    ops = [("s", 0.0, 1.0), ("p", 2.0, 5.0), ("o", 5.0, 6.0)]
    (finding,) = judge(RULE, recorded_trace(attention_program(), ops=ops, device="A device of the future")).findings
    assert (finding.basis, finding.cost_ns, finding.cost_bytes) == ("structural", None, 4 * SCORES)
    assert "no time" in finding.detail


def test_what_cannot_be_judged_abstains() -> None:
    before = _judge(attention_program(scheduled=False))
    assert (before.status, "before compilation" in (before.reason or "")) == ("abstained", True)
    unknown = hlo_module(
        f"""
        ENTRY %main (q: f32[64]) -> f32[64] {{
          %q = f32[64] parameter(0)
          ROOT %o = f32[64] custom-call(%q), custom_call_target="of_someone", {GPU}
        }}
        """
    )
    kernels = _judge(unknown)
    assert (kernels.status, "unknown" in (kernels.reason or "")) == ("abstained", True)
    nothing = judge(RULE, TraceBuilder(recorded=EVERYTHING - {"hlo", "shapes"}).build())
    assert (nothing.status, "XLA" in (nothing.reason or "")) == ("abstained", True)


def test_a_program_without_products_is_clean() -> None:
    plain = hlo_module(
        "ENTRY %main (q: f32[64]) -> f32[64] {\n%q = f32[64] parameter(0)\nROOT %o = f32[64] negate(%q)\n}"
    )
    assert _judge(plain).status == "clean"


def test_a_kernel_that_keeps_the_scores_is_clean() -> None:
    whole = [line.strip() for line in ENTRY.splitlines() if "%s = " in line or "%o = " in line]
    fused = f"""
    %flash (q: f32[QUERIES], k: f32[QUERIES], v: f32[QUERIES], old: f32[ROWS]) -> f32[QUERIES] {{
      %q = f32[QUERIES] parameter(0)
      %k = f32[QUERIES] parameter(1)
      %v = f32[QUERIES] parameter(2)
      %old = f32[ROWS] parameter(3)
      {whole[0]}
      {SOFTMAX_CALL}
      ROOT {whole[1]}
    }}
    """
    call = f"%o = f32[QUERIES] fusion(%q, %k, %v, %old), kind=kCustom, calls=%flash, {GPU}"
    entry = fused + ENTRY.replace(f"{whole[0]}\n", "").replace(f"{SOFTMAX_CALL}\n", "").replace(whole[1], call)
    assert _judge(attention_program(entry=entry)).status == "clean"
