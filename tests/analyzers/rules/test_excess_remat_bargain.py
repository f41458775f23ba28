"""Which of the reasons holds, what need not be spent, and that memory which is needed is no finding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from perfscope.analyzers.advice.simulate import keep_all, simulate, todays
from perfscope.analyzers.advice.step_model import StepModel
from perfscope.analyzers.advice.step_model_torch import torch_step_model
from perfscope.analyzers.engine import judge
from perfscope.analyzers.facts.memory_judged import SCARCE_SHARE
from perfscope.analyzers.facts.remat_bargain import Bargain, remat_bargain
from perfscope.analyzers.finding import Finding
from perfscope.analyzers.rules import load_rule
from perfscope.analyzers.trace import Trace
from tests.analyzers.advice.steps import checkpointed, layers, value
from tests.build import TraceBuilder

NODE = "autograd::engine::evaluate_function: AddmmBackward0"


def recorded(model: StepModel, *, regions: int = 4) -> Trace:
    """A step of 1,000 us that runs each of ``regions`` regions again for 20 us."""
    t = TraceBuilder()
    t.step(0, 0, 1000)
    t.op("aten::relu", 1, 10, sequence=1, forward_thread=0, shapes="[[4,8]]")
    for index in range(regions):
        begin = 100 + 50 * index
        t.op(NODE, begin, begin + 40, tid=2)
        t.op("aten::relu", begin + 1, begin + 21, tid=2, sequence=9 + index, forward_thread=0, shapes="[[4,8]]",
             external_id=index + 1)  # fmt: skip
        t.kernel("relu", begin + 300, begin + 320, external_id=index + 1)
    trace = t.build()
    trace.seed(torch_step_model, model)
    return trace


def judged(model: StepModel, *, regions: int = 4) -> tuple[Finding, ...]:
    return judge(load_rule("excess_remat"), recorded(model, regions=regions)).findings


def bargain(model: StepModel) -> Bargain:
    found = recorded(model).fact(remat_bargain)
    assert found is not None
    return found


def capacity_for(peak: float) -> int:
    """Of a device on which ``peak`` bytes may be used."""
    return round(peak / SCARCE_SHARE) + 1


PLAIN = layers(4, gradient=30)
KEPT = simulate(PLAIN, keep_all(PLAIN)).peak_bytes
FULL = simulate(PLAIN, ("full",) * 4).peak_bytes


def under(model: StepModel, policies: Sequence[str]) -> StepModel:
    """The step as if it had been recorded with these policies."""
    regions = tuple(
        replace(region, checkpointed=policy != "keep", selective=policy == "selective")
        for region, policy in zip(model.regions, policies, strict=True)
    )
    return replace(model, regions=regions)


def needed() -> StepModel:
    """Checkpointed no more than its peak asks for, on a device that has just the room."""
    best = bargain(checkpointed(PLAIN)).better
    assert best is not None
    return replace(under(PLAIN, best.policies), capacity_bytes=capacity_for(best.peak_bytes))


def count(model: StepModel) -> int:
    return sum(policy != "keep" for policy in todays(model))


def test_headroom_charges_all_of_it() -> None:
    (finding,) = judged(replace(checkpointed(PLAIN), capacity_bytes=capacity_for(KEPT)))
    assert finding.cost_ns == 80_000
    assert "off a peak that has room" in finding.title
    assert "Take the checkpointing away" in finding.advice


def test_memory_that_is_needed_is_no_finding() -> None:
    model = needed()
    assert bargain(model).verdict == "needed"
    assert bargain(model).avoidable == 0
    assert judged(model, regions=count(model)) == ()
    assert judged(replace(model, capacity_bytes=None), regions=count(model)) != ()


def test_another_choice_with_as_low_a_peak_dominates() -> None:
    """The last layer's values are made again just when everything else is still there."""
    found = bargain(checkpointed(PLAIN))
    assert found.verdict == "dominated"
    assert found.better is not None
    assert found.better.policies[-1] == "keep"
    assert found.better.peak_bytes <= found.today.peak_bytes
    (finding,) = judged(checkpointed(PLAIN))
    still = found.better.simulation.recompute_ns / found.today.recompute_ns
    assert 0 < still < 0.9
    assert finding.cost_ns == round(80_000 * (1 - still))
    assert "has as low a peak" in finding.title
    assert "checkpoint_wrapper" in finding.advice


def test_a_peak_elsewhere_is_not_lowered() -> None:
    """The optimizer makes copies behind the backward, larger than all activations."""
    model = checkpointed(PLAIN)
    update = value(5_000, model.length, model.length + 1)
    larger = replace(model, values=(*model.values, update), length=model.length + 1)
    assert bargain(larger).verdict == "elsewhere"
    (finding,) = judged(larger)
    assert "the peak lies elsewhere" in finding.title
    assert finding.cost_ns == 80_000


def test_checkpointing_one_layer_that_gains_nothing_did_not_lower_the_peak() -> None:
    model = layers(1, gradient=30)
    region = replace(model.regions[0], checkpointed=True)
    single = replace(model, regions=(region,))
    assert bargain(single).verdict == "not lowered"
    (finding,) = judged(single, regions=1)
    assert "does not lower the peak" in finding.title


def test_some_regions_fit() -> None:
    room = (KEPT + FULL) // 2
    model = replace(needed(), capacity_bytes=capacity_for(room))
    found = bargain(model)
    assert found.verdict == "headroom for some"
    assert found.better is not None
    assert found.better.peak_bytes <= room
    (finding,) = judged(model, regions=count(model))
    assert 0 < (finding.cost_ns or 0) < 20_000 * count(model)


def test_unknown_capacity_is_said_and_the_rest_judged() -> None:
    model = replace(needed(), capacity_bytes=None)
    assert bargain(model).verdict == "capacity unknown"
    (finding,) = judged(model, regions=count(model))
    assert "whether that memory would be free is not known" in finding.title
    assert "was not recorded" in finding.advice


def test_evidence_tells_what_each_region_buys() -> None:
    (finding,) = judged(under(PLAIN, ("full", "full", "full", "keep")), regions=3)
    by_region = {row["region"]: row for row in finding.evidence}
    assert set(by_region) == {f"Model.blocks.{index}" for index in range(3)}
    assert all(row["held_bytes"] == 140 for row in finding.evidence)
    assert all(row["form"] == "non-reentrant" for row in finding.evidence)
    assert max(int(row["bought_bytes"] or 0) for row in finding.evidence) > 0


@pytest.mark.parametrize(
    ("asked_by", "form"), [("CheckpointFunctionBackward", "reentrant"), ("AddmmBackward0", "selective")]
)
def test_forms_are_told_apart(asked_by: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.NODE", f"autograd::engine::evaluate_function: {asked_by}")
    (finding,) = judged(checkpointed(PLAIN, selective=form == "selective"))
    assert {row["form"] for row in finding.evidence} == {form}


def test_nothing_checkpointed_is_no_bargain() -> None:
    assert recorded(PLAIN).fact(remat_bargain) is None
