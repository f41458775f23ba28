"""Chains from the op graph and from a bare trace; fused and unrelated ops stay clean."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.hlo.parse.fusion_dump import refusals
from perfscope.analyzers.hlo.time import hlo_time
from perfscope.analyzers.programs.fusion import L2_BYTES, round_trips, round_trips_of, touched_bytes, trip_time
from perfscope.analyzers.readers.xspace import reader as xspace_reader
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from perfscope.model.op_graph import OpGraph
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder
from tests.graphs import GraphBuilder
from tests.hlo_build import GPU, corpus_module, hlo_module, hlo_trace, recorded_trace
from tests.rules import judged_by

ELEMENTWISE = "vectorized_elementwise_kernel<4>"
SIZE = 4 * 1024 * 128


outcome = judged_by("unfused_ops")


def layers(count: int = 3, *, phase: str = "forward", split: bool = False, ballast: int = 0) -> OpGraph:
    """``count`` layers of add -> mul -> silu between matmuls, all on the same three lines."""
    g = GraphBuilder()
    x, w = g.input((1024, 128)), g.input((128, 128), parameter=True)
    for layer in range(count):
        more = {"module": f"layers.{layer}.mlp", "file": "mlp.py", "function": "MLP.forward", "phase": phase}
        h = g.op("mm", [x, w], shape=(1024, 128), line=40, **more)
        h = g.op("add", [h, x], line=41, **more)
        if split:
            g.op("_local_scalar_dense", [x], shape=(), host_read="item", **more)
        h = g.op("mul", [h, h], line=42, **more) if not split else g.op("mm", [h, w], shape=(1024, 128), **more)
        x = g.op("silu", [h], line=43, **more)
    if ballast:
        g.op("mm", [g.input((ballast,))], shape=(1,))
    return g.graph(live=[x])


def timed(
    graph: OpGraph | None, *, step_us: float = 1000, us: float = 10, recorded: frozenset[str] = EVERYTHING
) -> Trace:
    """Three layers: mm 50 us and three elementwise kernels of ``us``."""
    t = TraceBuilder(op_graph=graph, recorded=recorded)
    t.step(0, 0, step_us)
    t.python("mlp.py(40): forward", 0, 90)
    at, number = 100.0, 0
    for _ in range(3):
        for name, took in (("mm", 50.0), ("add", us), ("mul", us), ("silu", us)):
            kernel = "gemm" if name == "mm" else ELEMENTWISE
            shapes = [[1024, 128]] if name in ("silu",) else [[1024, 128], [1024, 128]]
            t.op(f"aten::{name}", 1 + 4 * number, 4 + 4 * number, external_id=number, shapes=json.dumps(shapes),
                 dtypes=json.dumps(["float"] * len(shapes)))  # fmt: skip
            t.kernel(kernel, at, at + took, external_id=number)
            at, number = at + took, number + 1
    return t.build()


def test_a_loop_of_layers_is_one_finding_with_line_chain_bytes_and_time():
    (finding,) = outcome(timed(layers())).findings
    assert finding.subject == "add -> mul -> silu"
    assert (finding.where.file, finding.where.line, finding.where.module) == ("mlp.py", 41, "layers.*.mlp")
    eager, fused = 3 * (3 + 2 + 2) * SIZE, 3 * (2 + 1) * SIZE  # x*x reads once
    row = finding.evidence[0]
    assert row["eager_bytes"] == eager
    assert row["fused_bytes"] == fused
    assert finding.cost_bytes == eager - fused
    assert row["time_ns"] == 90_000
    # 9 ops of a fixed 2 us and 8 us of traffic: 6 ops fewer, and 4/7 of the traffic
    assert finding.cost_ns == finding.cost_ns_per_step == round(6 * 2_000 + 9 * 8_000 * 4 / 7)
    assert finding.basis == "modelled"
    assert "9 ops per step where 3 would do" in finding.detail
    assert "@torch.compile on forward()" in finding.advice


def test_the_saving_is_never_more_than_the_exposed_time():
    trace = timed(layers())
    (finding,) = outcome(trace).findings
    assert finding.cost_ns is not None
    assert finding.cost_ns <= 90_000


def test_a_saving_is_never_more_than_its_bytes_and_launches_can_take():
    """Kernels of 300 us for 7 x 512 KiB: memory traffic does not explain their slowness."""
    (finding,) = outcome(timed(layers(), us=300, step_us=3_000)).findings
    saved = 3 * 4 * SIZE  # bytes per step; 6 launches fewer, of 5 us at most
    slowest = 300e9 * 0.57  # an unknown device: the slowest of the catalogue, strided
    assert finding.cost_bytes == saved
    assert finding.cost_ns_per_step == pytest.approx(saved / slowest * 1e9 + 6 * 5_000, abs=1)
    (guessed,) = outcome(timed(None, us=300, step_us=3_000)).findings
    assert guessed.cost_ns == pytest.approx(saved / slowest * 1e9 + 6 * 5_000, abs=3)


def test_just_below_the_threshold_is_clean():
    saved_us = 6 * 2 + 9 * 8 * 4 / 7
    assert outcome(timed(layers(), step_us=saved_us * 50 - 1)).status == "flagged"
    assert outcome(timed(layers(), step_us=saved_us * 50 + 10)).status == "clean"
    assert outcome(TraceBuilder(op_graph=layers(ballast=320_000_000)).build()).status == "clean"


def test_ops_that_cannot_fuse_and_the_optimizer_are_clean():
    assert outcome(TraceBuilder(op_graph=layers(split=True)).build()).status == "clean"
    assert outcome(TraceBuilder(op_graph=layers(phase="optimizer")).build()).status == "clean"


def test_gradients_that_autograd_adds_up_and_fused_norms_are_clean():
    g = GraphBuilder()
    total = g.op("mm", [g.input((64, 64)), g.input((64, 64))], phase="backward")
    for _ in range(4):
        total = g.op("add", [total, g.op("mm", [total, total], phase="backward")], phase="backward")
    assert outcome(TraceBuilder(op_graph=g.graph(live=[total])).build()).status == "clean"
    n = GraphBuilder()
    x = n.input((64, 64))
    n.op("native_layer_norm", [n.op("add", [x, x])])
    assert outcome(TraceBuilder(op_graph=n.graph()).build()).status == "clean"


def micro_batches(*, gradient: bool) -> OpGraph:
    """Four passes; each adds to a value that exists before the step, or to one of the pass, and scales it."""
    g = GraphBuilder()
    kept, weight, bucket = g.input((64, 64)), g.input((64, 64)), g.input((64, 64))
    for _ in range(4):
        made = g.op("mm", [g.op("mm", [weight, weight]), weight], phase="backward")
        total = kept if gradient else g.op("mm", [made, made], phase="backward")
        g.op("add_", [total, made], phase="backward")
        g.op("mul_", [total, bucket], phase="backward")
    return g.graph(live=[kept])


def test_gradients_that_micro_batches_accumulate_are_not_a_chain():
    assert outcome(TraceBuilder(op_graph=micro_batches(gradient=True)).build()).status == "clean"
    (finding,) = outcome(TraceBuilder(op_graph=micro_batches(gradient=False)).build()).findings
    assert finding.subject == "add_ -> mul_"
    assert finding.title.endswith("4 times")


def test_attention_has_a_rule_of_its_own():
    g = GraphBuilder()
    q = g.input((8, 128, 32))
    s = g.op("bmm", [q, q], shape=(8, 128, 128))
    s = g.op("_softmax", [g.op("div", [s])])
    g.op("bmm", [s, q], shape=(8, 128, 32))
    assert outcome(TraceBuilder(op_graph=g.graph()).build()).status == "clean"


def test_without_times_the_bytes_are_said_and_the_basis_is_structural():
    (finding,) = outcome(TraceBuilder(op_graph=layers()).build()).findings
    assert (finding.basis, finding.cost_ns, finding.severity) == ("structural", None, "medium")
    assert finding.cost_ns is None


def test_on_a_program_without_an_accelerator_the_ops_stand_for_kernels():
    t = TraceBuilder(op_graph=layers(1), recorded=frozenset({"host_ops", "steps"}))
    t.step(0, 0, 100)
    for number, name in enumerate(("mm", "add", "mul", "silu")):
        t.op(f"aten::{name}", 10 * number, 10 * number + 7)
    (finding,) = outcome(t.build()).findings
    assert finding.cost_ns == round(2 * 2_000 + 3 * 5_000 * 4 / 7)
    assert "no accelerator" in str(finding.evidence[0]["time_known_by"])


def test_a_bare_trace_is_guessed_and_says_so():
    (finding,) = outcome(timed(None)).findings
    assert finding.subject == "add -> mul -> silu"
    assert finding.basis == "modelled"
    assert "93%" in finding.detail
    assert (finding.where.file, finding.where.line) == ("mlp.py", 40)
    assert finding.cost_ns == 3 * round(30_000 * 4 / 6)
    (row,) = finding.evidence
    assert (row["times"], row["kernels"], row["saved_ns"]) == (3, 9, finding.cost_ns), "alike: one row with their sums"
    assert outcome(timed(None, step_us=3_100)).status == "clean"


def test_abstains_without_graph_and_without_shapes():
    told = outcome(timed(None, recorded=EVERYTHING - {"shapes"}))
    assert told.status == "abstained"
    assert "perfscope run" in (told.reason or "")


@pytest.mark.corpus
def test_qwen_names_the_norm_of_the_model(corpus: Path):
    from perfscope.analyzers.readers.kineto.reader import read

    found = outcome(read(corpus / "kineto" / "TraceLens__h100_qwen1.5-0.5b.json.gz")).findings
    norm = next(finding for finding in found if finding.subject == "add -> rsqrt -> mul -> copy_ -> mul")
    assert norm.where.file == "transformers/models/qwen2/modeling_qwen2.py"
    assert "49 chains of 245 kernels" in norm.detail


RUNS = [("made", 0, 60), ("read", 60, 120), ("made", 500, 560), ("read", 560, 620)]
"""Two runs of ``chain``, in microseconds."""

LARGE = L2_BYTES // 4 + 1
"""Elements of float32 that do not fit in the cache."""


def chain(
    elements: int = LARGE, *, reader: str = "fusion(%made), kind=kLoop, calls=%body", more: str = ""
) -> HloModule:
    """A kernel that makes f32[elements] and one that reads it; ``more``: instructions after them."""
    text = """
        %body (p: f32[N]) -> f32[N] {
          %p = f32[N]{0} parameter(0)
          ROOT %e = f32[N]{0} exponential(%p)
        }
        %body2 (p: f32[N]) -> f32[N] {
          %p = f32[N]{0} parameter(0)
          ROOT %e = f32[N]{0} negate(%p)
        }
        %part (p: f32[N]) -> f32[8] {
          %p = f32[N]{0} parameter(0)
          ROOT %s = f32[8]{0} slice(%p), slice={[0:8]}
        }
        ENTRY %main (a: f32[N]) -> f32[N] {
          %a = f32[N]{0} parameter(0)
          %made = f32[N]{0} fusion(%a), kind=kLoop, calls=%body, META, GPU
          %read = f32[N]{0} READER
          MORE
          ROOT %view = f32[N]{0} bitcast(%read)
        }
    """
    meta = 'metadata={op_name="jit(step)/mlp/exp" source_file="/home/me/model.py" source_line=9}'
    for key, value in {"READER": reader, "MORE": more, "META": meta, "GPU": GPU, "[N]": f"[{elements}]"}.items():
        text = text.replace(key, value)
    return hlo_module(text)


def _judge(*modules: HloModule) -> Outcome:
    return judge(load_rule("unfused_ops"), hlo_trace(*modules))


def test_a_value_written_for_the_next_kernel_is_a_round_trip():
    outcome = _judge(chain())
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis) == ("flagged", "elementwise kernels", "modelled")
    assert finding.cost_bytes == 2 * 4 * LARGE
    assert finding.cost_ns == pytest.approx(2 * 4 * LARGE / 3.352e12 * 1e9, rel=0.001)  # one run, an H100's bandwidth
    assert finding.cost_ns_per_step is None
    # half of the program's time, but on an assumed device
    assert (finding.severity, "per run of the program, on H100 SXM (assumed)" in finding.detail) == ("medium", True)
    assert finding.where.label() == "/home/me/model.py:9"
    assert finding.evidence[0]["writes"] == "made"
    assert finding.evidence[0]["reads"] == "read"


def test_a_value_something_else_needs_saves_the_reads_only():
    (trip,) = round_trips_of(chain(more='%w = f32[8]{0} custom-call(%made), custom_call_target="mine"'))
    assert (trip.saved_bytes, trip.needed_elsewhere) == (4 * LARGE, True)


def test_several_readers_save_the_write_and_every_read():
    (trip,) = round_trips_of(
        chain(more="%w = f32[N]{0} fusion(%made), kind=kLoop, calls=%body2".replace("N", str(LARGE)))
    )
    assert ([one.name for one in trip.consumers], trip.saved_bytes) == (["read", "w"], 3 * 4 * LARGE)


@pytest.mark.parametrize(
    "reader",
    [
        'custom-call(%made), custom_call_target="__cublas$gemm"',
        "all-reduce(%made), to_apply=%body",
        "copy-start(%made)",
    ],
)
def test_what_xla_does_not_write_itself_cannot_be_fused(reader: str):
    assert list(round_trips_of(chain(reader=reader))) == []


def test_reading_a_part_is_no_round_trip_of_the_whole():
    assert list(round_trips_of(chain(reader="fusion(%a), kind=kLoop, calls=%body",
                                     more="%w = f32[8]{0} fusion(%made), kind=kLoop, calls=%part"))) == []  # fmt: skip


def test_a_value_that_stays_in_the_cache_is_clean():
    assert _judge(chain(elements=L2_BYTES // 4)).status == "clean"
    assert _judge(chain(elements=L2_BYTES // 4 + 1)).status == "flagged"


def test_in_the_cache_only_where_the_reader_comes_next():
    (trip,) = round_trips_of(
        chain(elements=1 << 20, reader="fusion(%a), kind=kLoop, calls=%body2",
              more=f"%w = f32[{1 << 20}]{{0}} fusion(%made), kind=kLoop, calls=%body2")
    )  # fmt: skip
    assert not trip.in_cache


def test_xlas_reason_stands_with_it():
    module = replace(chain(), fusion_refusals={"made": "the consumer is not fusible"})
    assert _judge(module).findings[0].evidence[0]["xla_says"] == "the consumer is not fusible"


@pytest.mark.parametrize(
    ("platform", "words"), [("cpu", "caches"), ("tpu", "vector memory"), (None, "no program compiled for a GPU")]
)
def test_programs_of_other_platforms_are_not_judged(platform, words: str):
    outcome = _judge(replace(chain(), platform=platform))
    assert outcome.status == "abstained"
    assert words in (outcome.reason or "")


def test_a_dump_names_the_last_reason_of_each_kernel():
    dump = """
fusion_steps {
  producer_ineligible {
    producer_name: "div.1"
    reason: "first"
  }
}
fusion_steps {
  update_priority {
    producer_name: "exp.1"
    consumer_names: "div.1"
    us_fused: 1.0
  }
}
fusion_steps {
  producer_ineligible {
    producer_name: "div.1"
    reason: "the consumer is not fusible"
  }
}
"""
    assert refusals(dump.splitlines()) == {"div.1": "the consumer is not fusible"}
    assert refusals(["no dump at all", 'reason: "x"']) == {}


@pytest.mark.corpus
def test_naive_attention_on_an_h100_by_hand(corpus: Path):
    module = corpus_module(corpus / "aot" / "gpu_attn_naive.hlo.txt.gz")
    trips = {trip.producer.name: trip for trip in round_trips_of(module)}
    scores = 2 * 4 * 256 * 256 * 4  # B H S S float32
    assert trips["gemm_fusion_dot.1"].saved_bytes == 3 * scores  # written, read by forward and backward softmax
    assert trips["gemm_fusion_dot.3"].saved_bytes == 2 * scores
    assert sum(trip.saved_bytes for trip in trips.values()) == pytest.approx(10.5e6, rel=0.002)
    assert touched_bytes(module) == pytest.approx(8.9e-6 * 3.352e12, rel=0.01)
    # scores that stay in the cache save no time; through memory they would take 3.1 of its 8.9 us
    trace = hlo_trace(module)
    times = [trip_time(trace, trip) for trip in trips.values()]
    assert sum(time.memory_ns for time in times) == pytest.approx(3_130, rel=0.005)
    assert {time.saved_ns for time in times} == {0.0}
    # these bytes are named once, by the rule on attention
    assert _judge(module).status == "clean"
    assert judge(load_rule("unfused_attention"), trace).status == "flagged"


def test_with_a_recording_no_more_is_saved_than_its_kernels_took():
    module = chain()
    modelled = 2 * 4 * LARGE / 3.352e12 * 1e9
    slow = judge(load_rule("unfused_ops"), recorded_trace(module, ops=RUNS, steps=[(0, 500), (500, 1000)]))
    (finding,) = slow.findings
    assert (finding.cost_ns, finding.cost_ns_per_step) == (round(2 * modelled), round(round(2 * modelled) / 2))
    assert (finding.basis, finding.severity) == ("modelled", "high")  # 6% of the steps, on a recorded device
    fast = judge(load_rule("unfused_ops"), recorded_trace(module, ops=[("made", 0, 10), ("read", 10, 20)]))
    assert (fast.findings[0].cost_ns, fast.findings[0].evidence[0]["measured_ns"]) == (20_000, 20_000)


def test_many_bytes_in_little_time_are_clean():
    # both steps take a hundred times as long as the round trip
    steps = [(0, 5_000), (5_000, 10_000)]
    assert judge(load_rule("unfused_ops"), recorded_trace(chain(), ops=RUNS, steps=steps)).status == "clean"


def test_arithmetic_that_every_reader_repeats_is_taken_off():
    readers = "".join(
        f"\n%w{i} = f32[{LARGE}]{{0}} fusion(%made), kind=kLoop, calls=%body2" for i in range(3)
    )  # fmt: skip
    trace = hlo_trace(chain(more=readers))
    (trip,) = trace.fact(round_trips)
    time = trip_time(trace, trip)
    assert (len(trip.consumers), time.launches_ns) == (4, 2_000)
    assert time.memory_ns == pytest.approx(5 * 4 * LARGE / 3.352e12 * 1e9)
    assert time.again_ns == pytest.approx(3 * LARGE / 66.9e12 * 1e9)  # an exponential each element, float32
    assert time.saved_ns == pytest.approx(time.memory_ns - time.again_ns)


def test_another_device_has_another_bandwidth():
    trace = hlo_trace(chain())
    trace = replace(trace, judged_device="NVIDIA B200")
    (finding,) = judge(load_rule("unfused_ops"), trace).findings
    assert finding.cost_ns == pytest.approx(2 * 4 * LARGE / 7.7e12 * 1e9, rel=0.001)
    assert (finding.severity, "on B200" in finding.detail) == ("high", True)


@pytest.mark.corpus
def test_synthetic_kernels_of_naive_attention_carry_their_time(corpus: Path):
    trace = xspace_reader.read(corpus / "aot" / "synth_attn_naive.xplane.pb.gz")
    times = trace.fact(hlo_time).by_key
    trips = trace.fact(round_trips)
    assert len(trips) == 3
    for trip in trips:
        kernels = [trip.producer.name, *(one.name for one in trip.consumers)]
        time = trip_time(trace, trip)
        assert time.measured_ns == sum(times[0, name].total_ns for name in kernels) / 3  # three runs, one stream
        assert time.saved_ns is not None
        assert time.saved_ns <= time.measured_ns


@pytest.mark.corpus
def test_blocked_attention_on_an_h100_has_no_scores_to_fuse(corpus: Path):
    assert _judge(corpus_module(corpus / "aot" / "gpu_attn_blocked.hlo.txt.gz")).status == "clean"


@pytest.mark.corpus
def test_a_real_dump(corpus: Path):
    with gzip.open(corpus / "aot" / "moe_ragged.priority_fusion_dump.txt.gz", "rt") as lines:
        found = refusals(lines)
    assert found["gemm_fusion_dot_general.3"] == "the producer is not fusible"
    assert found["broadcast.8.0"] == "do not fuse into the in-place operand of scatter"
