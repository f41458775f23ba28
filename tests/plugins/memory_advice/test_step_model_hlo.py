"""Checkpoint policies of compiled programs, predicted and held against the programs that XLA compiled with them."""

from __future__ import annotations

import hashlib
import lzma
import re
import tomllib
from functools import cache
from typing import Any

import pytest

from perfscope.analyzers.engine import judge
from perfscope.analyzers.hlo.parse.thunks import Schedule
from perfscope.analyzers.programs.saving import program_roof_ns
from perfscope.analyzers.readers.hlo import proto
from perfscope.analyzers.registry import load_rule
from perfscope.model.finding import AbstainError
from perfscope.model.trace import Trace
from perfscope.model.units import format_bytes
from perfscope.plugins.memory_advice.jax_layers import layers_of, runs_again
from perfscope.plugins.memory_advice.models import step_models
from perfscope.plugins.memory_advice.plans import plan_memory
from perfscope.plugins.memory_advice.simulate import Simulator, keep_all, todays
from perfscope.plugins.memory_advice.step_model import Policy, StepModel
from perfscope.plugins.memory_advice.step_model_hlo import (
    EXACT,
    bound_of,
    hlo_step_models,
    predicted_recompute,
    recomputed_flops,
)
from perfscope.plugins.memory_advice.verified import with_exact_peaks
from tests.conftest import REPOSITORY
from tests.hlo_build import hlo_module, hlo_trace

PROGRAMS = REPOSITORY / "fixtures" / "h100-programs"

LOOPS = ("attention-naive-scan-small", "attention-blocked-scan-small")
UNROLLED = "attention-naive-unrolled-small"
POLICIES: dict[str, Policy] = {"none": "keep", "full": "full", "dots": "selective"}

STEPS = (
    "attention-naive-scan-small",
    "attention-blocked-scan-small",
    "attention-naive-scan-vocabulary",
    "grouped-naive-scan-words",
    "ssm-scan-scan-other",
    "attention-naive-unrolled-small",
    "mlp-swiglu-halves-two",
    "mlp-swiglu-listed-other",
)
CHECKPOINTED = ("full", "dots")
OF_FLOPS = 0.05
"""Relative tolerance of the recomputed arithmetic: the other program computes casts and masks differently."""


@cache
def trace(name: str) -> Trace:
    return proto.read(PROGRAMS / f"{name}.hlo.pb.xz")


def model(name: str) -> StepModel:
    (found,) = trace(name).fact(hlo_step_models)
    return found


def peak(name: str, policy: str) -> int:
    found = model(name)
    return Simulator(found).run([POLICIES[policy]] * len(found.regions)).peak_bytes


def compiled(name: str) -> int:
    found = model(name).measured_peak_bytes
    assert found is not None
    return found


def provenance() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads((PROGRAMS / "provenance.toml").read_text())["programs"]
    return found


def test_the_recorded_programs_are_those_of_the_provenance_and_name_no_machine() -> None:
    assert {one["file"] for one in provenance()} == {path.name for path in PROGRAMS.glob("*.xz")}
    for one in provenance():
        packed = (PROGRAMS / one["file"]).read_bytes()
        assert hashlib.sha256(packed).hexdigest() == one["sha256"]
        data = lzma.decompress(packed)
        assert re.search(rb"(perfscope/workloads/jax|fixtures)/\w+\.py", data)
        assert not re.search(rb"/[\w.\-]+/[\w./\-]*perfscope/workloads", data)
        assert b"site-packages" not in data


@pytest.mark.parametrize("one", provenance()[::3], ids=lambda one: one["file"].partition(".")[0])
def test_the_peak_of_the_step_as_it_is_is_xlas_own(one: dict[str, Any]) -> None:
    found = model(one["file"].partition(".")[0])
    assert found.measured_peak_bytes == one["peak_bytes"]
    assert Simulator(found).run(todays(found)).peak_bytes == one["peak_bytes"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("policy", CHECKPOINTED)
def test_the_compiled_peak_is_within_the_bound_of_its_estimate(step: str, policy: str) -> None:
    single = "unrolled" in step or "listed" in step
    for source, asked in (("none", policy), (policy, "none")):
        low, high = bound_of(single=single, checkpointed=source != "none").between(peak(f"{step}-{source}", asked))
        assert low <= compiled(f"{step}-{asked}") <= high


@pytest.mark.parametrize("step", [*LOOPS, UNROLLED])
@pytest.mark.parametrize("policy", CHECKPOINTED)
def test_recomputed_arithmetic_is_that_of_the_compiled_program(step: str, policy: str) -> None:
    predicted = predicted_recompute(trace(f"{step}-none"), 0, POLICIES[policy])
    assert predicted == pytest.approx(recomputed_flops(trace(f"{step}-{policy}"), 0), rel=OF_FLOPS)


def test_a_program_says_how_far_off_estimates_were() -> None:
    found = model("attention-naive-scan-small-none")
    bound = bound_of(single=False, checkpointed=False)
    low, high = bound.between(peak("attention-naive-scan-small-none", "full"))
    assert f"checkpointing {format_bytes(low)} to {format_bytes(high)}" in found.notes[0]
    assert found.peak_margin == pytest.approx(1 / (1 + bound.low) - 1)
    assert EXACT in found.notes


def test_a_plan_needs_the_upper_end_of_its_estimate_and_todays_its_peak() -> None:
    found = model("attention-naive-scan-small-none")
    estimated = found.needed_bytes(["full"], 1000)
    assert estimated == round(1000 * (1 + found.peak_margin)) > 1000
    assert found.needed_bytes(todays(found), 1000) == 1000


def test_compiled_peaks_take_the_place_of_estimates() -> None:
    for step in (UNROLLED, "attention-naive-scan-small"):
        peaks: dict[Policy, int] = {POLICIES[word]: compiled(f"{step}-{word}") for word in CHECKPOINTED}
        exact = with_exact_peaks(model(f"{step}-none"), peaks)
        simulator, count = Simulator(exact), len(exact.regions)
        for policy, expected in peaks.items():
            assert simulator.run([policy] * count).peak_bytes == expected
        assert simulator.run(todays(exact)).peak_bytes == compiled(f"{step}-none")
        assert exact.peak_margin == 0
        assert EXACT not in exact.notes
        some = with_exact_peaks(model(f"{step}-none"), {"full": peaks["full"]})
        assert some.peak_margin == model(f"{step}-none").peak_margin
        assert EXACT not in some.notes


def test_plans_of_some_layers_lie_between_none_and_all() -> None:
    found = model(f"{UNROLLED}-none")
    simulator = Simulator(found)
    full: Policy = "full"
    keep: Policy = "keep"
    peaks = [simulator.run([full] * some + [keep] * (4 - some)).peak_bytes for some in range(5)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] == compiled(f"{UNROLLED}-none")


def test_layers_of_a_loop_are_named_after_the_line_of_the_scan() -> None:
    (region,) = model("attention-naive-scan-small-none").regions
    assert re.fullmatch(r"layers of the scan at training\.py:\d+", region.name)


def test_a_loop_within_a_layer_is_no_loop_over_layers() -> None:
    module = trace("ssm-scan-scan-other-none").hlo[0]
    (layers,) = layers_of(module, Schedule(module))
    assert layers.count == 5  # layers, and not 256 steps of time


def test_a_loop_is_one_region_and_unrolled_layers_are_one_each() -> None:
    (region,) = model("attention-naive-scan-small-none").regions
    assert region.today == "keep"
    assert [policy for policy, _ in region.changes] == ["keep", "selective", "full"]
    regions = model(f"{UNROLLED}-none").regions
    assert [one.name for one in regions] == ["block_0", "block_1", "block_2", "block_3"]
    assert {one.group for one in regions} == {"block"}


@pytest.mark.parametrize(("policy", "today"), [("none", "keep"), ("full", "full"), ("dots", "selective")])
def test_the_policy_of_today_is_told_from_the_program(policy: str, today: str) -> None:
    for step in (*LOOPS, UNROLLED):
        assert {region.today for region in model(f"{step}-{policy}").regions} == {today}


def test_what_a_layer_recomputes_of_itself_is_no_checkpoint_around_it() -> None:
    loop = "jit(step)/transpose(jvp())/while/body/closed_call"
    assert runs_again(f"{loop}/checkpoint/rematted_computation/exp", loops=True)
    assert not runs_again(f"{loop}/while/body/checkpoint/rematted_computation/exp", loops=True)
    assert not runs_again(f"{loop}/checkpoint/mul", loops=True)
    assert runs_again("jit(step)/transpose(jvp(block_1))/checkpoint/rematted_computation/exp", loops=False)


def test_a_policy_that_cannot_be_had_counts_as_keeping_everything() -> None:
    found = model("attention-naive-scan-small-none")
    simulator = Simulator(found)
    assert simulator.run(["offload"]).peak_bytes == simulator.run(keep_all(found)).peak_bytes


def test_less_kept_is_a_lower_peak_and_more_work() -> None:
    simulator = Simulator(model("attention-naive-scan-small-none"))
    keep, selective, full = (simulator.run([policy]) for policy in ("keep", "selective", "full"))
    assert keep.peak_bytes > selective.peak_bytes > full.peak_bytes
    assert 0 == keep.recompute_ns < selective.recompute_ns < full.recompute_ns


def test_state_is_held_and_everything_adds_up() -> None:
    found = model("attention-naive-scan-small-none")
    # weights in bfloat16: 12 D^2 + 9 D a layer, embedding, norm and head; AdamW has two moments of each
    dim, layers, vocabulary = 512, 4, 2048
    weights = 2 * (layers * (12 * dim**2 + 9 * dim) + 2 * dim + 2 * vocabulary * dim)
    assert found.parameter_bytes == weights
    assert found.optimizer_bytes == 2 * weights + 4  # and the count of steps
    assert (found.framework, found.gradients_in_values) == ("jax", True)


def test_the_steps_of_a_recording_are_those_of_its_programs() -> None:
    found = step_models([trace("attention-naive-scan-small-none"), trace("attention-naive-scan-small-full")])
    assert len(found.models) == 2
    assert not found.unseen


def test_text_without_a_buffer_assignment_is_refused_with_what_to_do() -> None:
    module = hlo_module("ENTRY %main () -> f32[4] {\n  ROOT %a = f32[4]{0} parameter(0)\n}", "jit_f", scheduled=True)
    with pytest.raises(AbstainError, match="xla_dump_hlo_as_proto"):
        hlo_step_models(hlo_trace(module))
    assert "buffer assignment" in step_models([hlo_trace(module)]).unseen[0]


def test_the_twin_that_donates_its_state_is_clean_and_the_other_is_not() -> None:
    rule = load_rule("donation_missed")
    assert judge(rule, trace("attention-naive-scan-small-none")).status == "clean"
    assert judge(rule, trace("attention-naive-scan-small-none-no-donation")).status == "flagged"


QUICKER = [
    ("attention-naive-scan-small", "full"),
    ("attention-naive-scan-small", "dots"),
    ("attention-naive-scan-vocabulary", "full"),
    ("grouped-naive-scan-words", "dots"),
    ("mlp-swiglu-halves-two", "full"),
]
"""Bound by memory: XLA's program with the policy takes less time by the model than that without."""


def added_ns(name: str, policy: str) -> int:
    """Predicted change of the step."""
    simulator = Simulator(model(name))
    after = simulator.run([POLICIES[policy]] * len(model(name).regions))
    return after.work_ns - simulator.run(todays(model(name))).work_ns


@pytest.mark.slow
@pytest.mark.parametrize(("step", "policy"), QUICKER)
def test_computing_again_is_quicker_where_stacks_cost_more(step: str, policy: str) -> None:
    kept, again = (trace(f"{step}-{name}").fact(program_roof_ns)[0] for name in ("none", policy))
    assert again < kept
    assert again - kept - 0.25 * again < added_ns(f"{step}-none", policy) < 0
    assert 0 < added_ns(f"{step}-{policy}", "none") < kept - again + 0.25 * kept


def test_layers_without_a_loop_have_no_stacks() -> None:
    changes = [change for region in model(f"{UNROLLED}-none").regions for _, change in region.changes]
    assert {change.stored_ns for change in changes} == {0}
    assert max(change.recompute_ns for change in changes) > 0


def test_the_quicker_plan_is_recommended_with_room_for_both() -> None:
    plans = plan_memory(model("attention-naive-scan-small-none"), budget_bytes=80 << 30)
    assert plans.recommended is not None
    assert set(plans.recommended.policies) != {"keep"}
    assert plans.recommended.added_low_ns < 0
