from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.collective import collectives, collectives_of, independent_work
from perfscope.analyzers.programs.collectives import cause_of
from perfscope.analyzers.readers.load import load_one
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from tests.build import EVERYTHING, TraceBuilder
from tests.conftest import REPOSITORY
from tests.hlo_build import GPU, corpus_module, hlo_module, hlo_trace, recorded_trace

RULE = load_rule("blocking_collective")

TWELVE = 'backend_config={"known_trip_count":{"n":"12"}}'
SYNC = 'backend_config={"operation_queue_id":"0","collective_backend_config":{"is_sync":true}}'
META = 'metadata={op_name="jit(step)/dot_general" source_file="/home/me/train.py" source_line=7}'


def gather(*, rows: int = 65536, config: str = GPU, beside: bool = False, independent: bool = True) -> str:
    """An all-gather of f32[rows,1] a device over 8 (32 x rows bytes), its start and done around nothing or work."""
    work = f"  %work = f32[64]{{0}} fusion(%{'b' if independent else 'done'}), kind=kLoop, calls=%body\n"
    return (
        "%body (p: f32[64]) -> f32[64] {\n  %p = f32[64]{0} parameter(0)\n  ROOT %e = f32[64]{0} exponential(%p)\n}\n"
        f"ENTRY %main (a: f32[{rows}], b: f32[64]) -> f32[{8 * rows}] {{\n"
        f"  %a = f32[{rows}]{{0}} parameter(0)\n  %b = f32[64]{{0}} parameter(1)\n"
        f"  %start = (f32[{rows}]{{0}}, f32[{8 * rows}]{{0}}) all-gather-start(%a), channel_id=1, "
        f"replica_groups=[1,8]<=[8], dimensions={{0}}, {META}, {config}\n"
        + (work if beside else "")
        + f"  %done = f32[{8 * rows}]{{0}} all-gather-done(%start), {META}\n"
        + ("" if beside else work)
        + f"  ROOT %out = f32[{8 * rows}]{{0}} add(%done, %done)\n}}\n"
    )


def _judge(text: str, *, scheduled: bool = True) -> Outcome:
    return judge(RULE, hlo_trace(hlo_module(text, scheduled=scheduled)))


def test_a_start_whose_done_comes_at_once_is_flagged():
    outcome = _judge(gather())
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis) == ("flagged", "blocking all-gather", "structural")
    assert finding.cost_bytes == 8 * 65536 * 4
    assert finding.where.label() == "/home/me/train.py:7"
    row = finding.evidence[0]
    assert (row["because"], row["group_size"], row["groups"]) == ("nothing scheduled between start and done", 8, 1)
    assert (row["independent"], row["could_overlap"]) == (1, "work")
    assert "latency_hiding" in finding.advice


SENT_NS = 7 * 65536 * 4 / 450e9 * 1e9
"""Time in which a device sends its part of the gathered value over an H100's links."""
WORK_NS = 2 * 131072 * 4 / 3.352e12 * 1e9
"""A kernel that reads and writes 131,072 float32."""


def with_work(elements: int) -> str:
    """The gather followed by independent work on that many elements."""
    return gather().replace("[64]", f"[{elements}]")


def test_no_more_can_hide_than_there_is_independent_work():
    (finding,) = _judge(with_work(131072)).findings
    assert finding.evidence[0]["transfer_ns"] == pytest.approx(SENT_NS)
    assert finding.evidence[0]["could_hide_ns"] == pytest.approx(WORK_NS)
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.basis) == (round(WORK_NS), None, "modelled")
    assert f"sending takes {SENT_NS / 1000:.2f} us per run or more" in finding.detail
    (finding,) = _judge(with_work(1 << 24)).findings
    assert finding.cost_ns == pytest.approx(SENT_NS, rel=0.001)  # now the exchange is the shorter


def test_what_nothing_can_hide_has_no_saving():
    (finding,) = _judge(gather(independent=False).replace("fusion(%done)", "fusion(%b2)").replace(
        "  %work", "  %b2 = f32[64]{0} slice(%done), slice={[0:64]}\n  %work"
    )).findings  # fmt: skip
    assert (finding.cost_ns, finding.basis, finding.evidence[0]["could_hide_ns"]) == (None, "structural", None)
    assert "us per run or more" in finding.detail
    assert finding.severity == "medium"  # most of the program's time, but of an assumed device


def test_work_that_two_could_hide_behind_counts_once():
    lines = with_work(131072).splitlines()
    pair = [line for line in lines if "%start" in line]
    again = [line.replace("%start", "%start2").replace("%done", "%done2") for line in pair]
    at = lines.index(pair[0])
    out = [f"{lines[-2]}".replace("%done, %done", "%done, %done2")]
    (finding,) = _judge("\n".join([*lines[:at], *pair, *again, *lines[at + 2 : -2], *out, "}"])).findings
    assert [row["could_hide_ns"] for row in finding.evidence] == [pytest.approx(WORK_NS)] * 2
    assert finding.cost_ns == round(WORK_NS)


def test_with_a_recording_only_what_nothing_hides_counts():
    module = hlo_module(gather(config=SYNC))
    # the kernel of the gather is alone for 6 of its 10 us; the independent work takes 4 us
    ops = [("start", 0, 10), ("out", 6, 10), ("work", 10, 14)]
    (finding,) = judge(RULE, recorded_trace(module, ops=ops, steps=[(0, 100)])).findings
    assert finding.evidence[0]["measured_ns"] == 6_000
    assert (finding.cost_ns, finding.cost_ns_per_step, finding.severity) == (4_000, 4_000, "medium")
    assert "the device waited 6.00 us per run" in finding.detail
    ops = [("start", 0, 10), ("out", 6, 10), ("work", 10, 50)]
    (finding,) = judge(RULE, recorded_trace(module, ops=ops, steps=[(0, 100)])).findings
    assert (finding.cost_ns, finding.severity) == (6_000, "high")


def test_marked_synchronous_blocks_whatever_lies_between():
    (finding,) = _judge(gather(config=SYNC, beside=True)).findings
    assert finding.evidence[0]["because"] == "marked synchronous"
    assert finding.evidence[0]["cause"] == "turned off by a flag"
    assert "Take ALLGATHER out of --xla_gpu_disable_async_collectives" in finding.advice
    assert "latency_hiding" not in finding.advice


def test_marked_with_nothing_between_is_the_schedulers_choice():
    (finding,) = _judge(gather(config=SYNC)).findings
    assert finding.evidence[0]["cause"] == "independent work was left elsewhere"
    assert "latency_hiding" in finding.advice
    assert "disable_async" not in finding.advice


@pytest.mark.parametrize(("config", "cause"), [(GPU, "no independent work near it"), (SYNC, "turned off by a flag")])
def test_one_op_on_a_gpu_was_joined_again_or_marked_by_a_flag(config: str, cause: str):
    (finding,) = _judge(LOOP.replace(GPU, config).replace("KNOWN", TWELVE)).findings
    assert (finding.evidence[0]["because"], finding.evidence[0]["cause"]) == ("never split into start and done", cause)


TPU = """
%cond (p: (s32[], f32[262144], f32[512,512])) -> pred[] {
  %p = (s32[], f32[262144]{0:T(1024)}, f32[512,512]{1,0:T(8,128)}) parameter(0)
  ROOT %lt = pred[]{:T(512)} constant(true)
}
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[]{:T(128)} parameter(0)
  %y = f32[]{:T(128)} parameter(1)
  ROOT %s = f32[]{:T(128)} add(%x, %y)
}
ENTRY %main (v: f32[262144], w: f32[512,512]) -> (f32[262144], f32[512,512]) {
  %v = f32[262144]{0:T(1024)} parameter(0)
  %w = f32[512,512]{1,0:T(8,128)} parameter(1)
  %sum = f32[262144]{0:T(1024)} KIND(%v), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %work = f32[512,512]{1,0:T(8,128)} WORK
  ROOT %t = (f32[262144]{0:T(1024)}, f32[512,512]{1,0:T(8,128)}) tuple(%sum, %work)
}
"""
PRODUCT = "convolution(%w, %w), dim_labels=bf_io->bf"


@pytest.mark.parametrize(
    ("kind", "work", "cause", "said"),
    [
        ("all-reduce", PRODUCT, "off unless flags say otherwise",
         "xla_tpu_enable_async_collective_fusion_fuse_all_reduce"),
        ("all-reduce", "tanh(%w)", "no matrix product near it", "with matrix products only"),
        ("all-reduce", "copy(%w)", "no independent work near it", "two half batches"),
        ("all-gather", PRODUCT, "independent work was left elsewhere", "hides the exchange by default"),
        ("all-gather", "tanh(%w)", "no matrix product near it", "with matrix products only"),
        ("all-to-all", "tanh(%w)", "off unless flags say otherwise", '"xla_tpu_enable_async_all_to_all": "true"'),
        ("reduce-scatter", PRODUCT, "no flag divides it", "No flag that changes it is known"),
    ],
)  # fmt: skip
def test_what_a_tpu_leaves_one_op_has_its_own_cause(kind: str, work: str, cause: str, said: str):
    text = TPU.replace("KIND", kind).replace("WORK", work)
    if kind not in ("all-reduce", "reduce-scatter"):
        text = text.replace(", to_apply=%add", ", dimensions={0}")
    (finding,) = _judge(text).findings
    assert finding.evidence[0]["cause"] == cause
    assert said in finding.advice
    assert "xla_gpu" not in finding.advice
    if kind != "all-reduce":
        assert "xla_enable_async_all_reduce" not in finding.advice


@pytest.mark.parametrize(
    ("kind", "cause", "said"),
    [
        ("all-gather", "off unless flags say otherwise", "xla_tpu_enable_async_collective_fusion_fuse_all_gather"),
        ("all-to-all", "no flag divides it", "leaves an all-to-all one op on this chip"),
    ],
)
def test_what_was_tried_on_a_v5e_is_not_said_of_other_chips(kind: str, cause: str, said: str):
    text = TPU.replace("KIND", kind).replace(", to_apply=%add", ", dimensions={0}").replace("WORK", PRODUCT)
    trace = hlo_trace(hlo_module(text))
    trace = replace(trace, judged_device="TPU v6e")
    (finding,) = judge(RULE, trace).findings
    assert finding.evidence[0]["cause"] == cause
    assert said in finding.advice


def test_the_causes_of_recorded_programs():
    """Compiled with the flags, `all-to-all` is split, and one `all-reduce` parallel to a product is divided."""
    trace = load_one(REPOSITORY / "fixtures" / "programs-v5e" / "transformer-sharding")
    found: dict[str, set[str]] = {}
    for one in trace.fact(collectives):
        found.setdefault(one.kind, set()).add(cause_of(trace, one, independent_work(one)))
    assert found == {
        "all-gather": {"no matrix product near it", "independent work was left elsewhere"},
        "all-reduce": {"no matrix product near it", "off unless flags say otherwise"},
        "all-to-all": {"off unless flags say otherwise"},
    }
    trace = load_one(REPOSITORY / "fixtures" / "programs-h100" / "transformer-sharding")
    blocking = [one for one in trace.fact(collectives) if one.blocks]
    assert {cause_of(trace, one, independent_work(one)) for one in blocking} == {"independent work was left elsewhere"}


def test_work_between_start_and_done_is_clean():
    assert _judge(gather(beside=True)).status == "clean"


def test_work_that_needs_the_result_could_not_overlap():
    (finding,) = _judge(gather(independent=False).replace("fusion(%done)", "fusion(%b2)").replace(
        "  %work", "  %b2 = f32[64]{0} slice(%done), slice={[0:64]}\n  %work"
    )).findings  # fmt: skip
    assert finding.evidence[0]["independent"] == 0
    assert "nothing near it is independent" in finding.detail
    assert "latency_hiding" not in finding.advice
    assert "two half batches" in finding.advice


def test_the_threshold_is_one_mebibyte_a_run():
    assert _judge(gather(rows=32768)).status == "flagged"
    assert _judge(gather(rows=32767)).status == "clean"


LOOP = """
%cond (p: (s32[], f32[65536])) -> pred[] {
  %p = (s32[], f32[65536]{0}) parameter(0)
  ROOT %lt = pred[] constant(true)
}
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}
%loop (q: (s32[], f32[65536])) -> (s32[], f32[65536]) {
  %q = (s32[], f32[65536]{0}) parameter(0)
  %i = s32[] get-tuple-element(%q), index=0
  %v = f32[65536]{0} get-tuple-element(%q), index=1
  %sum = f32[65536]{0} all-reduce(%v), channel_id=1, replica_groups={{0,1},{2,3}}, to_apply=%add, GPU
  ROOT %t = (s32[], f32[65536]{0}) tuple(%i, %sum)
}
ENTRY %main (a: (s32[], f32[65536])) -> (s32[], f32[65536]) {
  %a = (s32[], f32[65536]{0}) parameter(0)
  ROOT %w = (s32[], f32[65536]{0}) while(%a), condition=%cond, body=%loop, KNOWN
}
""".replace("GPU", GPU)


def test_a_loop_multiplies_and_an_unknown_trip_count_is_a_lower_bound():
    known = _judge(LOOP.replace("KNOWN", TWELVE)).findings[0]
    assert (known.cost_bytes, known.evidence[0]["times"]) == (12 * 65536 * 4, 12)
    assert known.evidence[0]["because"] == "never split into start and done"
    assert (known.evidence[0]["group_size"], known.evidence[0]["groups"]) == (2, 2)
    assert "at least" not in known.detail
    open_ended = _judge(LOOP.replace(", KNOWN", "").replace("65536", "1048576")).findings[0]
    assert "at least 4.00 MiB" in open_ended.detail


def test_what_cannot_be_judged_abstains():
    assert judge(RULE, TraceBuilder(recorded=EVERYTHING - {"hlo"}).build()).reason == (
        "not recorded: the compiled XLA programs"
    )
    assert "no schedule" in (_judge(gather(), scheduled=False).reason or "")
    cpu = _judge(gather(config='backend_config={"outer_dimension_partitions":["2"]}'))
    assert (cpu.status, cpu.reason) == ("abstained", "compiled for the CPU, where every collective is synchronous")


def test_a_cpu_program_without_collectives_has_nothing_to_judge():
    exp = 'f32[8] exponential(%a), backend_config={"outer_dimension_partitions":["2"]}'
    text = f"ENTRY %main (a: f32[8]) -> f32[8] {{\n  %a = f32[8] parameter(0)\n  ROOT %b = {exp}\n}}"
    assert _judge(text).status == "abstained"


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("path", "counted"),
    [
        ("aot/gpu_md_fsdp_unrolled.hlo.txt.gz", {("all-to-all", True): 12, ("all-gather", True): 3,
            ("all-to-all", False): 5, ("all-gather", False): 6, ("reduce-scatter", False): 1,
            ("all-reduce", False): 1}),
        ("aot/gpu_md_fsdp.hlo.txt.gz", {("all-to-all", True): 2, ("all-gather", True): 1, ("all-to-all", False): 4,
            ("all-gather", False): 4, ("reduce-scatter", False): 1, ("all-reduce", False): 1}),
        ("hlo_text/JAX-Toolbox__maxtext_fsdp4_jit_train_step.sm_9.0_after_opt.txt.gz", {("all-reduce", False): 8,
            ("all-gather", False): 7, ("all-to-all", False): 2, ("reduce-scatter", False): 4,
            ("reduce-scatter", True): 1}),
        ("hlo_text/Primus__moe_dp1_pp2_ep8.gfx950_after_opt.txt.gz", {("all-to-all", True): 2,
            ("all-to-all", False): 14, ("collective-permute", False): 11, ("all-reduce", False): 11,
            ("all-gather", False): 4, ("reduce-scatter", False): 2}),
    ],
)  # fmt: skip
def test_sync_flags_of_real_programs_counted_by_hand(corpus: Path, path: str, counted: dict[tuple[str, bool], int]):
    found: dict[tuple[str, bool], int] = {}
    for one in collectives_of(corpus_module(corpus / path)):
        key = (one.kind, one.blocks == "marked synchronous")
        found[key] = found.get(key, 0) + 1
    assert found == counted


@pytest.mark.corpus
def test_a_real_blocking_all_to_all_names_line_and_work(corpus: Path):
    module = corpus_module(corpus / "aot" / "gpu_md_fsdp_unrolled.hlo.txt.gz")
    outcome = judge(RULE, hlo_trace(module))
    assert {finding.subject for finding in outcome.findings} == {"blocking all-to-all", "blocking all-gather"}
    assert {finding.where.label() for finding in outcome.findings} == {"/home/user/workload/gpu_md.py:32"}
    assert all(finding.basis == "modelled" and finding.severity == "medium" for finding in outcome.findings)
    first = next(one for one in collectives_of(module) if one.start.name == "all-to-all-start")
    assert "gemm_fusion_dot.20" in {one.name for one in independent_work(first)}
