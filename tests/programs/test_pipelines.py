from __future__ import annotations

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.programs.pipelines import stages_of
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from tests.hlo_build import GPU, hlo_module, hlo_trace

RULE = load_rule("pipeline_bubble")
RING = "{{0,1},{1,2},{2,3},{3,0}}"


def _judge(turns: int, microbatches: int, pairs: str = RING) -> Outcome:
    """A loop that takes one of ``microbatches`` inputs in each of ``turns`` and hands it to the next device."""
    meta = 'metadata={op_name="jit(step)/while/body/ppermute" source_file="/home/me/train.py" source_line=16}'
    state = f"(s32[], f32[32,128], f32[{microbatches},32,128])"
    return judge(RULE, hlo_trace(hlo_module(f"""
        %body (p: {state}) -> {state} {{
          %p = {state} parameter(0)
          %t = s32[] get-tuple-element(%p), index=0
          %h = f32[32,128]{{1,0}} get-tuple-element(%p), index=1
          %xs = f32[{microbatches},32,128]{{2,1,0}} get-tuple-element(%p), index=2
          %one = s32[] constant(1)
          %zero = s32[] constant(0)
          %next = s32[] add(%t, %one)
          %x = f32[1,32,128]{{2,1,0}} dynamic-slice(%xs, %t, %zero, %zero), dynamic_slice_sizes={{1,32,128}}
          %flat = f32[32,128]{{1,0}} bitcast(%x)
          %y = f32[32,128]{{1,0}} add(%h, %flat)
          %sent = f32[32,128]{{1,0}} collective-permute(%y), source_target_pairs={pairs}, {meta}, {GPU}
          ROOT %r = {state} tuple(%next, %sent, %xs)
        }}
        %cond (p: {state}) -> pred[] {{
          %p = {state} parameter(0)
          %t = s32[] get-tuple-element(%p), index=0
          %n = s32[] constant({turns})
          ROOT %c = pred[] compare(%t, %n), direction=LT
        }}
        ENTRY %main (a: f32[32,128], b: f32[{microbatches},32,128]) -> {state} {{
          %a = f32[32,128]{{1,0}} parameter(0)
          %b = f32[{microbatches},32,128]{{2,1,0}} parameter(1)
          %zero = s32[] constant(0)
          %init = {state} tuple(%zero, %a, %b)
          ROOT %w = {state} while(%init), condition=%cond, body=%body, backend_config={{"known_trip_count":{{"n":"{turns}"}}}}
        }}
    """)))  # noqa: E501  # fmt: skip


def test_the_bubble_of_four_stages_and_four_microbatches_is_three_of_seven_turns():
    (finding,) = _judge(turns=7, microbatches=4).findings
    assert finding.title == "pipeline of 4 stages: 3 of 7 turns are bubble"
    assert finding.where.label() == "/home/me/train.py:16"
    assert "with 16 the bubble is 3 of 19 turns" in finding.advice
    row = finding.evidence[0]
    assert (row["stages"], row["microbatches"], row["turns"]) == (4, 4, 7)


def test_a_twentieth_of_the_turns_is_the_threshold():
    assert _judge(turns=60, microbatches=57).status == "flagged"
    assert _judge(turns=61, microbatches=58).status == "clean"


def test_a_ring_and_a_loop_that_takes_no_microbatches_are_clean():
    assert _judge(turns=4, microbatches=4).status == "clean"  # ring attention: as many turns as devices
    assert _judge(turns=7, microbatches=7).status == "clean"  # an exchange with neighbours in each time step
    assert _judge(turns=7, microbatches=4, pairs="{}").status == "clean"


@pytest.mark.parametrize(
    ("pairs", "stages"),
    [
        (RING, 4),
        ("{{0,1},{1,2},{2,3}}", 4),
        ("{{0,2},{2,0},{1,3},{3,1}}", 2),
        ("{{0,1},{2,3},{3,4}}", 0),
        ("", 0),
    ],
)
def test_stages_of_a_permutation(pairs: str, stages: int) -> None:
    assert stages_of(pairs) == stages
