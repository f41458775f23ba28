"""The model of a real step: its peak under every policy is that of the step which was run with that policy."""

from __future__ import annotations

import contextlib
import io
from itertools import pairwise
from pathlib import Path

import pytest

from perfscope.analyzers.advice.plans import plan_memory
from perfscope.analyzers.advice.simulate import Simulator, todays
from perfscope.analyzers.advice.step_model import Policy
from perfscope.analyzers.advice.step_model_torch import torch_step_model
from perfscope.analyzers.advice.words import code_for
from perfscope.analyzers.finding import AbstainError
from tests.analyzers.advice.recorded import Step, recorded, recorded_net, trace_of
from tests.build import TraceBuilder

POLICY: dict[str, Policy] = {"none": "keep", "full": "full", "selective": "selective"}
WITHIN = 0.02
"""Of the peak that was measured. The errors seen are 0; the allowance is for another torch."""


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Step]:
    folder = tmp_path_factory.mktemp("steps")
    found = {policy: recorded(folder, policy=policy) for policy in POLICY}
    found["reentrant"] = recorded(folder, policy="full", reentrant=True)
    return found


@pytest.mark.parametrize("run", ["none", "full", "selective", "reentrant"])
@pytest.mark.parametrize("asked", list(POLICY))
def test_every_policy_is_predicted_from_every_recording(steps: dict[str, Step], run: str, asked: str) -> None:
    model = steps[run].model()
    told = Simulator(model).run([POLICY[asked]] * len(model.regions))
    assert told.peak_bytes - told.held_bytes == pytest.approx(steps[asked].peak_bytes, rel=WITHIN)


def test_what_is_recorded_differs_by_policy(steps: dict[str, Step]) -> None:
    """Else the predictions above would say nothing."""
    none, full, selective = (steps[name].peak_bytes for name in POLICY)
    assert full < 0.75 * none
    assert full < 0.9 * selective < 0.9 * none


def test_regions_are_the_blocks(steps: dict[str, Step]) -> None:
    regions = steps["none"].model().regions
    assert [region.name for region in regions] == [f"Transformer.blocks.{index}" for index in range(3)]
    assert {region.group for region in regions} == {"Transformer.blocks.*"}
    assert all(a.forward[1] <= b.forward[0] for a, b in pairwise(regions))
    assert all(a.backward[0] >= b.backward[1] for a, b in pairwise(regions))


@pytest.mark.parametrize(
    ("run", "policy"), [("none", "keep"), ("full", "full"), ("selective", "selective"), ("reentrant", "full")]
)
def test_todays_policy_is_seen(steps: dict[str, Step], run: str, policy: str) -> None:
    assert set(todays(steps[run].model())) == {policy}


def test_a_checkpointed_step_has_the_values_of_a_plain_one(steps: dict[str, Step]) -> None:
    def sizes(run: str) -> list[int]:
        return sorted(value.bytes for value in steps[run].model().values if value.bytes)

    assert sizes("full") == sizes("selective") == sizes("none")


def test_recomputing_costs_what_the_ops_that_ran_again_cost(steps: dict[str, Step]) -> None:
    """With a nanosecond a byte, in the recording of `full` itself: early stop included."""
    graph = steps["full"].graph
    trace = trace_of(graph)
    again = sum(
        sum(graph.tensors[index].bytes for index in {*op.inputs, *op.outputs, *op.mutated})
        for op in graph.ops
        if op.recompute and not op.view
    )
    model = trace.fact(torch_step_model)
    assert Simulator(model).run(todays(model)).recompute_ns == again


@pytest.mark.parametrize("name", ["nested", "in place", "shared", "accumulated"])
def test_other_nets_are_predicted_both_ways(name: str, tmp_path: Path) -> None:
    steps = {policy: recorded_net(tmp_path, name, checkpointed=policy == "full") for policy in ("keep", "full")}
    assert steps["full"].peak_bytes < 0.8 * steps["keep"].peak_bytes
    for step in steps.values():
        model = step.model()
        assert len(model.regions) == {"shared": 6, "accumulated": 10}.get(name, 5)
        for asked, truth in steps.items():
            told = Simulator(model).run([asked] * len(model.regions))  # type: ignore[list-item]
            assert told.peak_bytes - told.held_bytes == pytest.approx(truth.peak_bytes, rel=WITHIN)


def test_the_recommended_code_does_what_was_predicted(steps: dict[str, Step], tmp_path: Path) -> None:
    model = steps["none"].model()
    lowest = min(plan.peak_bytes for plan in plan_memory(model).front)
    budget = (lowest + Simulator(model).run(todays(model)).peak_bytes) // 2
    plan = plan_memory(model, budget_bytes=budget).recommended
    assert plan is not None
    assert {"keep", "selective"} <= set(plan.policies) or {"keep", "full"} <= set(plan.policies)
    code = "\n".join(code_for(model, plan))

    def apply(built: object) -> None:
        with contextlib.redirect_stderr(io.StringIO()):
            exec(code, {"model": built})

    ran = recorded(tmp_path, change=apply)
    assert plan.simulation.peak_bytes - plan.simulation.held_bytes == pytest.approx(ran.peak_bytes, rel=WITHIN)


def test_it_abstains_without_a_graph_or_a_backward() -> None:
    with pytest.raises(AbstainError, match="no op graph"):
        torch_step_model(TraceBuilder().build())
