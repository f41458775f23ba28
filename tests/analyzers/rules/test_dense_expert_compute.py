from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.finding import Outcome
from perfscope.analyzers.hlo.module import HloModule
from perfscope.analyzers.rules import load_rule
from tests.build import EVERYTHING, TraceBuilder
from tests.hlo_build import GPU, corpus_module, hlo_module, hlo_trace

RULE = load_rule("dense_expert_compute")

RAGGED = "jit(step)/jvp(experts)/ragged_dot_general"
FACTORS = "lhs_contracting_dims={1,2}, rhs_contracting_dims={0,1}"


CPU = 'backend_config={"outer_dimension_partitions":["2"]}'
"""What marks a program as compiled for the CPU."""


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


def _judge(module: HloModule) -> Outcome:
    return judge(RULE, hlo_trace(module))


def test_all_experts_for_every_token_are_flagged():
    outcome = _judge(experts())
    (finding,) = outcome.findings
    assert (outcome.status, finding.basis, finding.cost_ns) == ("flagged", "structural", None)
    assert finding.where.label() == "/home/me/moe.py:111"
    row = finding.evidence[0]
    assert (row["groups"], row["gflops"]) == (4, 2 * 256 * 4 * 64 * 32 / 1e9)
    assert row["wasted_gflops"] == pytest.approx(0.75 * 2 * 256 * 4 * 64 * 32 / 1e9)
    assert "with all 4 matrices" in finding.title


def test_on_a_gpu_it_has_a_time():
    """Bound by memory on an H100 (3,352 GB/s): what goes is three of the four copies of the rows."""
    (finding,) = _judge(experts(config=GPU)).findings
    assert finding.basis == "modelled"
    assert finding.cost_ns == round(0.75 * 256 * 4 * 64 * 4 / 3.352e3)
    assert "(assumed)" in finding.title


def test_the_threshold_is_a_twentieth_of_the_arithmetic():
    """Wasted 3 of (4 + n) products."""
    assert _judge(experts(other=56)).status == "flagged"
    assert _judge(experts(other=57)).status == "clean"


def test_a_product_that_is_not_ragged_is_clean():
    assert _judge(experts("jit(step)/jvp(experts)/dot_general")).status == "clean"


def test_one_expert_wastes_nothing_but_the_shapes_do_not_tell():
    outcome = _judge(experts(groups=1))
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
    (finding,) = _judge(hlo_module(MASKED.replace("NAMED", named))).findings
    assert (finding.evidence[0]["groups"], finding.where.label()) == (4, "/home/me/moe.py:54")


@pytest.mark.parametrize(
    ("spelled", "instead"),
    [
        ("%both = pred[4,256,64] and(%after, %before)", "%both = pred[4,256,64] or(%after, %before)"),
        ("compare(%at, %to)", "compare(%to, %from)"),
        ("broadcast(%x), dimensions={1,2}", "parameter(3)"),
    ],
)
def test_other_masks_are_clean(spelled: str, instead: str):
    """Masks of padding and of causality compare positions with positions, or mask what was never copied."""
    assert spelled in MASKED
    assert _judge(hlo_module(MASKED.replace(spelled, instead).replace(", NAMED", ""))).status == "clean"


def test_a_grouped_kernel_is_clean():
    text = f"""
        ENTRY %main (x: f32[256,64], w: f32[4,64,32]) -> f32[256,32] {{
          %x = f32[256,64] parameter(0)
          %w = f32[4,64,32] parameter(1)
          ROOT %k = f32[256,32] custom-call(%x, %w), custom_call_target="gmm", metadata={{op_name="{RAGGED}"}}, {GPU}
        }}
    """
    assert _judge(hlo_module(text)).status == "clean"


def test_what_cannot_be_judged_abstains():
    assert _judge(experts(scheduled=False)).status == "abstained"
    assert judge(RULE, TraceBuilder(recorded=EVERYTHING - {"hlo"}).build()).status == "abstained"


@pytest.mark.corpus
def test_a_real_mixture_of_8_experts_by_hand(corpus: Path):
    findings = _judge(corpus_module(corpus / "aot" / "gpu_moe_ragged.hlo.txt.gz")).findings
    assert {one.where.label() for one in findings} == {"/home/user/workload/wl.py:111", "/home/user/workload/wl.py:112"}
    for finding in findings:
        assert len(finding.evidence) == 3  # forward, and the gradients of rows and matrices
        assert finding.basis == "modelled"
        assert finding.cost_ns is not None
        for row in finding.evidence:
            assert (row["groups"], row["gflops"]) == (8, 8 * 2 * 1024 * 64 * 128 / 1e9)


@pytest.mark.corpus
def test_a_program_without_experts_is_clean(corpus: Path):
    assert _judge(corpus_module(corpus / "aot" / "gpu_attn_naive.hlo.txt.gz")).status == "clean"
