"""The greedy order, the front, the budget, sharding and its price, and the words for all of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest

from perfscope.analyzers.advice.greedy import greedy, groups_of
from perfscope.analyzers.advice.plans import MOST_SHOWN, plan_memory
from perfscope.analyzers.advice.sharding import Links, device_of, links_of, placements, transfer
from perfscope.analyzers.advice.simulate import Placement, Simulator, keep_all, simulate
from perfscope.analyzers.advice.words import code_for, describe
from perfscope.analyzers.hardware import named_device
from tests.analyzers.advice.steps import checkpointed, layers


def test_greedy_takes_cheap_bytes_first_and_only_goes_down() -> None:
    steps = greedy(Simulator(layers(4)))
    peaks = [step.simulation.peak_bytes for step in steps]
    assert peaks == sorted(peaks, reverse=True)
    # An activation is 100 bytes for 10 ns, a product 40 for 30: all activations come first.
    policies = [step.policy for step in steps]
    assert policies == sorted(policies, key=("selective", "full").index)
    assert [step.unit for step in steps[:2]] == ["Model.blocks.0", "Model.blocks.1"]
    assert all(step.saved_bytes == 100 and step.added_ns == 10 for step in steps[:2])


def test_calls_of_one_module_are_checkpointed_together() -> None:
    model = layers(3)
    regions = tuple(replace(one, name="Model.block", group="Model.block") for one in model.regions)
    shared = replace(model, regions=regions)
    ((unit,),) = [group.units for group in groups_of(shared)]
    assert unit.regions == (0, 1, 2)
    for plan in plan_memory(shared).front:
        assert len(set(plan.policies)) == 1


def test_no_plan_of_the_front_beats_another() -> None:
    plans = plan_memory(layers(5))
    assert plans.complete
    assert len(plans.front) > 3
    for one, other in combinations(plans.front, 2):
        assert (one.peak_bytes < other.peak_bytes) != (one.added_low_ns < other.added_low_ns) or (
            one.added_high_ns != other.added_high_ns
        )
    assert len(plans.front) <= MOST_SHOWN


def test_the_front_has_the_best_of_all_choices() -> None:
    """By trying every policy of every layer, not only as many of the first ones."""
    from itertools import product

    model = replace(layers(3), on_host=True)
    simulator = Simulator(model)
    every = [simulator.run(choice) for choice in product(("keep", "selective", "full"), repeat=3)]
    for plan in plan_memory(model).front:
        rivals = [one for one in every if one.recompute_ns <= plan.simulation.recompute_ns]
        assert plan.peak_bytes <= min(one.peak_bytes for one in rivals) * 1.002


def test_the_recommended_plan_is_the_quickest_that_fits() -> None:
    model = replace(layers(4), on_host=True)
    lowest = min(plan.peak_bytes for plan in plan_memory(model).front)
    budget = (lowest + simulate(model, keep_all(model)).peak_bytes) // 2
    plans = plan_memory(model, budget_bytes=budget)
    assert plans.recommended is not None
    assert plans.fits(plans.recommended)
    fitting = [plan for plan in plans.front if plans.fits(plan)]
    assert min(plan.added_high_ns or 0 for plan in fitting) == plans.recommended.added_high_ns
    assert plans.budget_from == "asked"


def test_without_a_budget_it_is_the_devices_memory_or_none() -> None:
    assert plan_memory(layers(2)).budget_bytes is None
    assert plan_memory(layers(2)).recommended is None
    plans = plan_memory(replace(layers(2), capacity_bytes=1 << 20))
    assert (plans.budget_bytes, plans.budget_from) == (int(0.9 * (1 << 20)), "device")
    assert plans.recommended is not None
    assert set(plans.recommended.policies) == {"keep"}


def test_nothing_fits_a_budget_below_what_is_held() -> None:
    plans = plan_memory(layers(2), budget_bytes=500)
    assert plans.recommended is None
    assert not any(plans.fits(plan) for plan in plans.front)


def test_what_the_allocator_held_beyond_the_peak_is_left_free() -> None:
    model = replace(layers(2), on_host=True)
    peak = simulate(model, keep_all(model)).peak_bytes
    assert plan_memory(model, budget_bytes=peak).recommended is not None
    tight = plan_memory(replace(model, reserve_share=0.2), budget_bytes=peak)
    assert tight.recommended is None or set(tight.recommended.policies) != {"keep"}
    assert tight.needs(tight.today) == round(1.2 * peak)


def test_today_is_what_is_checkpointed_now() -> None:
    plans = plan_memory(checkpointed(layers(3)))
    assert set(plans.today.policies) == {"full"}
    assert plans.today.added_low_ns == 0
    quickest = min(plans.front, key=lambda plan: plan.added_low_ns)
    assert quickest.added_low_ns == -plans.today.simulation.recompute_ns


def test_offloading_is_not_looked_at_where_there_is_no_device() -> None:
    front = plan_memory(replace(layers(3), on_host=True)).front
    assert not any("offload" in plan.policies or plan.placement.optimizer_on_host for plan in front)


@pytest.mark.parametrize(
    ("level", "world", "moved"),
    [
        (1, 1, 2 * 0.75 * 40),  # reduce-scatter and gather, where nothing was exchanged before
        (2, 1, 2 * 0.75 * 40),
        (3, 1, 0.75 * (2 * 500 + 40)),
        (1, 4, 0),  # what the all-reduce moved
        (3, 4, 0.75 * (2 * 500 + 40) - 2 * 0.75 * 40),
    ],
)
def test_what_sharding_moves_through_the_links(level: int, world: int, moved: float) -> None:
    model = replace(layers(4), world_size=world)
    links = Links(between=10**9, between_name="link", to_host=None, to_host_name=None)
    placement = Placement(devices=4, level=level)  # type: ignore[arg-type]
    found = transfer(model, placement, simulate(model, keep_all(model), placement), links)
    assert found.between_bytes == round(moved)
    assert found.worst_ns == round(moved)
    assert found.host_bytes == 0


def test_a_bandwidth_that_is_not_known_gives_no_worst_case() -> None:
    model = layers(2)
    links = links_of(None, 4)
    told = transfer(model, Placement(devices=4, level=3), simulate(model, keep_all(model)), links)
    assert told.worst_ns is None
    assert told.between_bytes > 0


def test_links_are_those_of_the_device_and_of_the_network_beyond_a_node() -> None:
    h100 = named_device("H100")
    within, beyond = links_of(h100, 8), links_of(h100, 16)
    assert (within.between_name, within.between) == ("NVLink 4", 450 * 10**9)
    assert "assumed" in (beyond.between_name or "")
    assert beyond.between == 50 * 10**9
    assert (within.to_host_name, within.to_host) == ("PCIe 5 x16", 63 * 10**9)
    assert device_of(layers(1)) == h100
    assert device_of(layers(1), "A100 40GB") != h100


def test_placements_of_a_sharded_step_are_not_sharded_again() -> None:
    model = layers(1)
    assert {one.level for one in placements(model, 4)} == {0, 1, 2, 3}
    assert {one.level for one in placements(replace(model, sharded=True), 4)} == {0}
    assert {one.level for one in placements(model, 1)} == {0}


def test_words_and_code_of_a_mixed_plan() -> None:
    model = layers(4)
    plan = next(
        one for one in plan_memory(replace(model, on_host=True)).front if {"full", "selective"} <= set(one.policies)
    )
    text = describe(model, plan)
    assert "checkpoint blocks[0" in text
    assert "checkpoint selectively blocks[" in text
    code = "\n".join(code_for(model, plan))
    compile(code, "advice", "exec")
    assert "checkpoint_wrapper(model.blocks[" in code
    assert "context_fn=contexts" in code


def test_words_and_code_of_sharding_and_of_the_host() -> None:
    model = layers(4, held=100_000)
    model = replace(model, regions=tuple(replace(one, parameter_bytes=12_500) for one in model.regions))
    front = plan_memory(model, devices=8).front
    sharded = next(plan for plan in front if plan.placement.level == 3)
    assert "ZeRO-3 on 8 devices" in describe(model, sharded)
    assert "fully_shard(block)" in "\n".join(code_for(model, sharded))
    compile("\n".join(code_for(model, sharded)), "advice", "exec")
    hosted = next(plan for plan in front if plan.placement.optimizer_on_host)
    assert "optimizer state on the host" in describe(model, hosted)
    assert hosted.added_high_ns is None  # the update takes time on the host that nobody knows


def test_keeping_today_needs_no_code() -> None:
    plans = plan_memory(layers(2))
    assert describe(plans.model, plans.today) == "keep all activations"
    assert code_for(plans.model, plans.today) == ()


def test_code_of_a_jax_program_names_its_policies() -> None:
    model = replace(layers(3), framework="jax", on_host=True)
    plan = next(one for one in plan_memory(model).front if "selective" in one.policies)
    code = "\n".join(code_for(model, plan))
    assert "dots_with_no_batch_dims_saveable" in code
    compile(code, "advice", "exec")


def test_members_of_the_model_itself_are_named_as_such() -> None:
    model = replace(layers(3), on_host=True)
    regions = tuple(
        replace(one, name=f"Sequential.{index}", group="Sequential.*") for index, one in enumerate(model.regions)
    )
    model = replace(model, regions=regions)
    plan = next(one for one in plan_memory(model).front if one.policies.count("selective") == 2)
    assert "model[0:2] (2 of 3)" in describe(model, plan)
    assert "model[index] = checkpoint_wrapper(model[index], context_fn=contexts)" in "\n".join(code_for(model, plan))


def test_modules_without_numbers_are_named_and_many_are_counted() -> None:
    model = replace(layers(6), on_host=True)
    regions = tuple(replace(one, name=f"Net.part_{index}", group="Net.part") for index, one in enumerate(model.regions))
    model = replace(model, regions=regions)
    plan = next(one for one in plan_memory(model).front if one.policies.count("selective") >= 5)
    assert "part_0, part_1 and" in describe(model, plan)
    assert "model.part_1 = checkpoint_wrapper(model.part_1" in "\n".join(code_for(model, plan))
