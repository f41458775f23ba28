from __future__ import annotations

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.programs.repeated_work import tile_of_devices
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import Outcome
from tests.build import EVERYTHING, TraceBuilder
from tests.hlo_build import GPU, hlo_module, hlo_trace

RULE = load_rule("repeated_work")
META = 'metadata={op_name="jit(step)/dot_general" source_file="/home/me/train.py" source_line=24}'


def step(weights: str = "{replicated}", batch: str = "{replicated}", more: str = "") -> str:
    """A product of a batch ``x`` with weights ``ps[0]``, and the new weights."""
    return f"""
        ENTRY %main (w: f32[256,256], x: f32[512,256]) -> f32[256,256] {{
          %w = f32[256,256]{{1,0}} parameter(0), sharding={weights}, metadata={{op_name="ps[0]"}}
          %x = f32[512,256]{{1,0}} parameter(1), sharding={batch}, metadata={{op_name="x"}}
          {more}
          %y = f32[512,256]{{1,0}} dot(%x, %w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, {META}
          ROOT %g = f32[256,256]{{1,0}} dot(%x, %y), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}, {META}, {GPU}
        }}
    """  # noqa: E501


def _judge(*texts: str) -> Outcome:
    return judge(RULE, hlo_trace(*(hlo_module(text, f"jit_step.{number}") for number, text in enumerate(texts))))


def test_a_batch_that_every_device_gets_whole_is_flagged_with_its_name():
    (finding,) = _judge(step()).findings
    assert finding.title == "all 8 devices compute the same in jit_step.0: x is not divided"
    assert finding.evidence[0]["devices_per_value"] == 8
    assert "x = jax.device_put(x, data)" in finding.advice
    assert finding.where.label() == "/home/me/train.py:24"
    assert finding.cost_ns is not None
    assert finding.run_ns is not None
    assert finding.cost_ns == pytest.approx(finding.run_ns * 7 / 8, rel=0.01)


def test_weights_divided_over_one_axis_leave_the_devices_along_the_other():
    divided = "{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}"
    (finding,) = _judge(step(weights=divided)).findings
    assert finding.title.startswith("groups of 4 of 8 devices compute the same")
    assert "ps is divided" in finding.detail


@pytest.mark.parametrize(
    ("weights", "batch"),
    [
        ("{replicated}", "{devices=[8,1]<=[8]}"),
        ("{devices=[8,1]<=[8]}", "{replicated}"),
        ("{devices=[1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}", "{devices=[4,1,2]<=[8] last_tile_dim_replicate}"),
    ],
)
def test_work_that_is_divided_is_clean(weights: str, batch: str) -> None:
    assert _judge(step(weights, batch)).status == "clean"


def test_a_program_that_asks_for_its_device_or_has_unknown_shardings_is_clean():
    assert _judge(step(more="%p = u32[] partition-id()")).status == "clean"
    assert _judge(step(batch="{manual}")).status == "clean"


def test_a_tenth_of_the_arithmetic_is_the_threshold():
    def large(rows: int) -> str:
        return step(batch="{devices=[8,1]<=[8]}").replace("512", str(rows))

    assert _judge(step(), large(512 * 9)).status == "flagged"
    assert _judge(step(), large(512 * 9 + 8)).status == "clean"


def test_without_a_compiled_program_it_abstains():
    assert judge(RULE, hlo_trace(hlo_module(step(), scheduled=False))).status == "abstained"
    assert judge(RULE, TraceBuilder(recorded=EVERYTHING - {"hlo"}).build()).status == "abstained"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("{replicated}", [0, 0, 0, 0]),
        ("{devices=[2,2]<=[4]}", [0, 1, 2, 3]),
        ("{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}", [0, 1, 0, 1]),
        ("{devices=[2,2]3,2,1,0}", [3, 2, 1, 0]),
    ],
)
def test_parts_of_devices(text: str, parts: list[int]) -> None:
    found = tile_of_devices(text, 4)
    assert found is not None
    assert found.tolist() == parts


@pytest.mark.parametrize("text", ["", "{manual}", "{devices=[2,2]<=[8]}", "{devices=[3]0,1,2}", "{devices=[4]0,0,1,2}"])
def test_shardings_that_are_not_known(text: str) -> None:
    assert tile_of_devices(text, 4) is None
