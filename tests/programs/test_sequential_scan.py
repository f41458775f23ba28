from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.programs.scan import loops
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from tests.build import EVERYTHING, TraceBuilder
from tests.hlo_build import GPU, corpus_module, hlo_module, hlo_trace, recorded_trace

RULE = load_rule("sequential_scan")

META = 'metadata={op_name="jit(f)/while" source_file="/home/me/ssm.py" source_line=131}'
LINEAR = "  ROOT %new = f32[N] add(%scaled, %x)\n"


def scan(update: str = LINEAR, *, trips: int | None = 32, elements: int = 64, platform: str = GPU) -> HloModule:
    """h = update(a * h, x) for each x of f32[trips, N]; the h are collected."""
    known = f'backend_config={{"known_trip_count":{{"n":"{trips}"}}}}, ' if trips is not None else ""
    rows = trips or 8
    carry = f"(s32[], f32[{elements}], f32[{rows},{elements}], f32[{rows},{elements}])"
    text = f"""
        %step (h: f32[N], xs: f32[T,N], i: s32[], a: f32[N]) -> f32[N] {{
          %h = f32[N] parameter(0)
          %xs = f32[T,N] parameter(1)
          %i = s32[] parameter(2)
          %zero = s32[] constant(0)
          %row = f32[1,N] dynamic-slice(%xs, %i, %zero), dynamic_slice_sizes={{1,N}}
          %x = f32[N] bitcast(%row)
          %a = f32[N] exponential(%x)
          %scaled = f32[N] multiply(%a, %h)
          UPDATE
        }}
        %collect (ys: f32[T,N], i: s32[], h: f32[N]) -> f32[T,N] {{
          %ys = f32[T,N] parameter(0)
          %i = s32[] parameter(1)
          %h = f32[N] parameter(2)
          %t = f32[N] tanh(%h)
          %row = f32[1,N] bitcast(%t)
          %zero = s32[] constant(0)
          ROOT %dus = f32[T,N] dynamic-update-slice(%ys, %row, %i, %zero)
        }}
        %count (i: s32[]) -> s32[] {{
          %i = s32[] parameter(0)
          %one = s32[] constant(1)
          ROOT %next = s32[] add(%i, %one)
        }}
        %body (c: CARRY) -> CARRY {{
          %c = CARRY parameter(0)
          %i = s32[] get-tuple-element(%c), index=0
          %h = f32[N] get-tuple-element(%c), index=1
          %ys = f32[T,N] get-tuple-element(%c), index=2
          %xs = f32[T,N] get-tuple-element(%c), index=3
          %step.1 = f32[N] fusion(%h, %xs, %i), kind=kLoop, calls=%step, {platform}
          %out = f32[T,N] fusion(%ys, %i, %step.1), kind=kLoop, calls=%collect
          %next = s32[] fusion(%i), kind=kLoop, calls=%count
          ROOT %t = CARRY tuple(%next, %step.1, %out, %xs)
        }}
        %cond (c: CARRY) -> pred[] {{
          %c = CARRY parameter(0)
          %i = s32[] get-tuple-element(%c), index=0
          %n = s32[] constant({rows})
          ROOT %lt = pred[] compare(%i, %n), direction=LT
        }}
        ENTRY %main (init: CARRY) -> CARRY {{
          %init = CARRY parameter(0)
          ROOT %w = CARRY while(%init), condition=%cond, body=%body, {known}{META}
        }}
    """
    for spelled, meant in {
        "UPDATE": update.strip(), "CARRY": carry, "[T,N]": f"[{rows},{elements}]", "{1,N}": f"{{1,{elements}}}",
        "[1,N]": f"[1,{elements}]", "[N]": f"[{elements}]",
    }.items():  # fmt: skip
        text = text.replace(spelled, meant)
    return hlo_module(text)


def _judge(module: HloModule) -> Outcome:
    return judge(RULE, hlo_trace(module))


def test_a_linear_recurrence_of_tiny_steps_is_flagged():
    outcome = _judge(scan(trips=256))
    (finding,) = outcome.findings
    assert (outcome.status, finding.subject, finding.basis) == ("flagged", "sequential scan", "modelled")
    assert finding.where.label() == "/home/me/ssm.py:131"
    # 256 steps of 4 launches, against up and down sweeps of 8 rounds and twice a work that hardly counts
    assert finding.cost_ns == pytest.approx((256 - 2 * 8) * 4 * 2_000, rel=0.001)
    assert finding.cost_ns_per_step is None
    assert "per run of the program, on H100 SXM (assumed) less time" in finding.detail
    row = finding.evidence[0]
    assert (row["steps"], row["kernels_a_step"], row["launches"]) == (256, 4, 1024)
    assert finding.severity == "medium"
    assert "associative_scan" in finding.advice


def test_the_threshold_is_32_steps():
    assert _judge(scan(trips=32)).status == "flagged"
    assert _judge(scan(trips=31)).status == "clean"


@pytest.mark.parametrize(
    ("update", "linear"),
    [
        (LINEAR, True),
        ("  ROOT %new = f32[N] subtract(%x, %scaled)\n", True),
        ("  %n = f32[N] negate(%scaled)\n  ROOT %new = f32[N] divide(%n, %a)\n", True),
        ("  %p = pred[N] compare(%x, %a), direction=LT\n  ROOT %new = f32[N] select(%p, %scaled, %h)\n", True),
        ("  ROOT %new = f32[N] tanh(%scaled)\n", False),
        ("  ROOT %new = f32[N] multiply(%scaled, %h)\n", False),
        ("  ROOT %new = f32[N] divide(%x, %scaled)\n", False),
        ("  %p = pred[N] compare(%h, %a), direction=LT\n  ROOT %new = f32[N] select(%p, %scaled, %h)\n", False),
        ("  ROOT %new = f32[N] maximum(%scaled, %x)\n", False),
        ("  ROOT %new = f32[N] add(%x, %x)\n", True),
        ("  %left = f32[N] reverse(%scaled), dimensions={0}\n  ROOT %new = f32[N] add(%left, %x)\n", False),
    ],
)
def test_only_a_linear_carry_has_an_associative_form(update: str, linear: bool):
    (loop,) = hlo_trace(scan(update)).fact(loops)
    assert loop.is_linear == linear
    assert _judge(scan(update)).status == ("flagged" if linear else "clean")


def test_a_step_with_enough_work_is_clean():
    """Four launches of 2 us are 27 MB of traffic at 3,352 GB/s."""
    assert _judge(scan(elements=10_000_000)).status == "clean"
    assert _judge(scan(elements=100_000)).status == "flagged"


def test_on_a_cpu_it_says_what_it_would_be_on_a_gpu():
    (finding,) = _judge(replace(scan(trips=256), platform="cpu")).findings
    assert finding.severity == "low"
    assert "CPU here" in finding.detail


KERNELS = ("step.1", "out", "next", "lt")


def recorded(turns: int, *, every: float, runs: int = 2) -> list[tuple[str, float, float]]:
    """Kernels of 1 us, one each ``every`` us, of all turns of the loop; a run each 100 ms."""
    return [
        (name, run * 100_000 + (turn * len(KERNELS) + i) * every, run * 100_000 + (turn * len(KERNELS) + i) * every + 1)
        for run in range(runs)
        for turn in range(turns)
        for i, name in enumerate(KERNELS)
    ]


def test_with_a_recording_the_gaps_between_its_kernels_count():
    trace = recorded_trace(scan(trips=256), ops=recorded(256, every=5), steps=[(0, 40_000), (100_000, 140_000)])
    (finding,) = judge(RULE, trace).findings
    measured = 1023 * 5_000 + 1_000  # from the first kernel to the last of 1,024
    assert finding.evidence[0]["measured_ns"] == measured
    assert finding.cost_ns_per_step == pytest.approx(measured - 2 * 8 * 4 * 2_000, rel=0.001)
    assert finding.cost_ns == pytest.approx(2 * finding.cost_ns_per_step, abs=1)
    assert finding.severity == "high"  # an eighth of the steps


def test_a_loop_that_the_profile_names_takes_as_long_as_it_says():
    ops = [("w", 0, 3_000), *recorded(256, every=5, runs=1)]
    (finding,) = judge(RULE, recorded_trace(scan(trips=256), ops=ops, around=("w",))).findings
    assert finding.evidence[0]["measured_ns"] == 3_000_000


def test_where_the_recording_begins_inside_the_loop_only_its_kernels_count():
    ops = recorded(256, every=5, runs=1)[3:]
    trace = recorded_trace(scan(trips=256), ops=ops)
    (finding,) = judge(RULE, trace).findings
    assert finding.evidence[0]["measured_ns"] == pytest.approx(1_021_000, rel=0.01)


def test_a_loop_as_fast_as_a_parallel_prefix_is_clean():
    assert judge(RULE, recorded_trace(scan(trips=32), ops=recorded(32, every=0.5))).status == "clean"


def test_on_a_cpu_no_time_is_promised():
    module = replace(scan(trips=256), platform="cpu")
    (finding,) = judge(RULE, recorded_trace(module, ops=recorded(256, every=5), device="")).findings
    assert (finding.cost_ns, finding.basis, finding.severity) == (None, "structural", "low")


def test_an_unknown_trip_count_is_not_guessed():
    assert hlo_trace(scan(trips=None)).fact(loops) == ()


def test_on_a_tpu_steps_wait_for_one_another_and_no_time_is_said():
    (finding,) = judge(RULE, hlo_trace(replace(scan(), platform="tpu"))).findings
    assert (finding.cost_ns, finding.basis, finding.severity) == (None, "structural", "low")
    assert "launches" not in finding.title
    assert {row["launches_ns_at_2_us"] for row in finding.evidence} == {None}


def test_what_cannot_be_judged_abstains():
    assert judge(RULE, TraceBuilder(recorded=EVERYTHING - {"hlo"}).build()).status == "abstained"


@pytest.mark.corpus
def test_a_state_space_model_scanned_step_by_step(corpus: Path):
    (finding,) = _judge(corpus_module(corpus / "aot" / "gpu_ssm_seq.hlo.txt.gz")).findings
    assert [(row["phase"], row["steps"], row["launches"]) for row in finding.evidence] == [
        ("forward", 256, 2560), ("backward", 256, 2304),
    ]  # fmt: skip
    assert finding.where.label() == "/home/user/workload/wl.py:131"
    assert (finding.basis, finding.severity) == ("modelled", "medium")
    assert 8_000_000 < finding.cost_ns < 4864 * 2_000


@pytest.mark.corpus
@pytest.mark.parametrize("twin", ["gpu_ssm_assoc", "gpu_attn_blocked", "gpu_ckpt_full_scan", "gpu_md_fsdp"])
def test_programs_without_such_a_loop_are_clean(corpus: Path, twin: str):
    assert _judge(corpus_module(corpus / "aot" / f"{twin}.hlo.txt.gz")).status == "clean"
