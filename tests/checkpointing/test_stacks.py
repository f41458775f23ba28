"""What keeping costs in a loop over layers, against programs that XLA compiled with and without a policy."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from perfscope.analyzers.checkpointing.plans import plan_memory
from perfscope.analyzers.checkpointing.simulate import Simulator, todays
from perfscope.analyzers.checkpointing.step_model import Policy
from perfscope.analyzers.checkpointing.step_model_hlo import hlo_step_models
from perfscope.analyzers.programs.saving import program_roof_ns
from perfscope.analyzers.readers.hlo import proto
from perfscope.model.trace import Trace
from tests.conftest import REPOSITORY

PROGRAMS = REPOSITORY / "fixtures" / "h100-programs"
POLICIES: dict[str, Policy] = {"none": "keep", "full": "full", "dots": "selective"}
QUICKER = [
    ("attention-naive-scan-small", "full"),
    ("attention-naive-scan-small", "dots"),
    ("attention-naive-scan-vocabulary", "full"),
    ("grouped-naive-scan-words", "dots"),
    ("mlp-swiglu-halves-two", "full"),
]
"""Bound by memory: XLA's program with the policy takes less time by the model than that without."""


@cache
def program(stem: str, policy: str) -> Trace:
    path: Path = PROGRAMS / f"{stem}-{policy}.hlo.pb.xz"
    return proto.read(path)


def added_ns(trace: Trace, policy: str) -> int:
    """Predicted change of the step."""
    (model,) = hlo_step_models(trace)
    simulator = Simulator(model)
    after = simulator.run([POLICIES[policy]] * len(model.regions))
    return after.work_ns - simulator.run(todays(model)).work_ns


def step_ns(trace: Trace) -> float:
    return trace.fact(program_roof_ns)[0]


@pytest.mark.slow
@pytest.mark.parametrize(("stem", "policy"), QUICKER)
def test_computing_again_is_quicker_where_stacks_cost_more(stem: str, policy: str) -> None:
    kept, again = program(stem, "none"), program(stem, policy)
    change = step_ns(again) - step_ns(kept)
    assert change < 0
    assert added_ns(kept, policy) == pytest.approx(change, abs=0.25 * step_ns(again))
    assert added_ns(kept, policy) < 0
    assert added_ns(again, "none") == pytest.approx(-change, abs=0.12 * step_ns(kept))
    assert added_ns(again, "none") > 0


def test_layers_without_a_loop_have_no_stacks() -> None:
    (model,) = hlo_step_models(program("attention-naive-unrolled-small", "none"))
    changes = [change for region in model.regions for _, change in region.changes]
    assert {change.stored_ns for change in changes} == {0}
    assert max(change.recompute_ns for change in changes) > 0


def test_the_quicker_plan_is_recommended_with_room_for_both() -> None:
    (model,) = hlo_step_models(program("attention-naive-scan-small", "none"))
    plans = plan_memory(model, budget_bytes=80 << 30)
    assert plans.recommended is not None
    assert set(plans.recommended.policies) != {"keep"}
    assert plans.recommended.added_low_ns < 0
