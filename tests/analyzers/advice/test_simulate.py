"""Lifetimes under each policy, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfscope.analyzers.advice.simulate import Placement, Simulator, keep_all, simulate, todays
from perfscope.analyzers.advice.step_model import Region, StepModel
from tests.analyzers.advice.steps import checkpointed, layers, value


def one_layer(**changes: object) -> StepModel:
    return replace(layers(1), **changes)  # type: ignore[arg-type]


def test_keeping_everything_is_the_recorded_step() -> None:
    model = layers(2)
    told = simulate(model, keep_all(model))
    # Both layers' values and outputs when the loss begins: 2 * (100 + 40 + 16), and what is held.
    assert told.peak_bytes == 1_000 + 2 * 156 + 8
    assert (told.held_bytes, told.recompute_ns, told.recomputed) == (1_000, 0, 0)
    assert (told.part, told.region) == ("forward", 1)


def test_full_keeps_outputs_and_makes_the_rest_again_up_to_what_is_needed() -> None:
    model = layers(2)
    told = simulate(model, ["full", "full"])
    # The product and the activation of each layer; the temporary and the output come behind what is needed.
    assert told.recompute_ns == 2 * (30 + 10)
    assert told.recomputed == 4
    curve = Simulator(model).curve(["full", "full"])
    assert curve.max() == told.peak_bytes
    # In the backward of the second layer: the output of the first, two values made again, and a gradient.
    assert told.peak_bytes == 1_000 + 16 + 100 + 40 + 10
    assert (told.part, told.region) == ("backward", 1)


def test_a_lone_checkpointed_layer_is_full_again_in_its_own_backward() -> None:
    model = layers(2)
    last, first = simulate(model, ["keep", "full"]), simulate(model, ["full", "keep"])
    assert last.peak_bytes == 1_000 + 156 + 140 + 10  # the first layer's values wait beside it all the same
    assert first.peak_bytes < last.peak_bytes


def test_selective_keeps_products() -> None:
    model = layers(2)
    told = simulate(model, ["selective", "selective"])
    assert told.recompute_ns == 2 * 10
    full, kept = simulate(model, ["full", "full"]), simulate(model, keep_all(model))
    assert full.peak_bytes < told.peak_bytes < kept.peak_bytes
    assert told.peak_bytes == full.peak_bytes + 40  # the first layer's product beside the second's forward


def test_a_product_that_nobody_needs_is_kept_selectively_all_the_same() -> None:
    model = layers(1)
    unneeded = value(500, 2, 3, region=0, kind="product", last_forward_use=2, cost_ns=7)
    with_it = replace(model, values=(*model.values, unneeded))
    plain, selective = simulate(model, ["selective"]), simulate(with_it, ["selective"])
    assert simulate(with_it, ["full"]).recompute_ns == simulate(model, ["full"]).recompute_ns
    assert selective.peak_bytes - plain.peak_bytes >= 500 - 8
    curve = Simulator(with_it).curve(["selective"])
    assert curve[4] >= 1_000 + 500  # while the loss runs
    assert Simulator(with_it).curve(["keep"])[4] < 1_000 + 500


def test_what_others_need_stays_and_is_made_a_second_time() -> None:
    both = value(50, 1, 8, region=0, needed_by=frozenset({0, None}), last_forward_use=1, cost_ns=3)
    model = replace(layers(1), values=(*layers(1).values, both))
    curve = Simulator(model).curve(["full"])
    assert curve[4] == 1_000 + 50 + 16
    # In the backward: both copies.
    assert curve[-4] == 1_000 + 2 * 50 + 140


def test_an_input_that_nobody_keeps_is_held_until_the_backward_is_through() -> None:
    model = layers(1)
    region = replace(model.regions[0], input_bytes=70)
    told = Simulator(replace(model, regions=(region,))).curve(["full"]) - Simulator(model).curve(["full"])
    assert set(told.tolist()) == {0, 70}
    assert told[5] == 70
    assert simulate(replace(model, regions=(region,)), ["keep"]) == simulate(model, ["keep"])


def test_offloading_takes_values_away_between_forward_and_backward() -> None:
    model = layers(2)
    told = simulate(model, ["offload", "offload"])
    assert told.offloaded_bytes == 2 * 140
    assert told.recompute_ns == 0
    assert told.peak_bytes == simulate(model, ["full", "full"]).peak_bytes


def test_a_region_without_a_backward_cannot_be_checkpointed() -> None:
    model = layers(1)
    region = replace(model.regions[0], backward=(0, 0))
    frozen = replace(model, regions=(region,))
    assert simulate(frozen, ["full"]) == simulate(frozen, ["keep"])


def test_todays_policies_are_those_of_the_recording() -> None:
    model = layers(2)
    assert todays(model) == ("keep", "keep")
    assert todays(checkpointed(model)) == ("full", "full")
    assert todays(checkpointed(model, selective=True)) == ("selective", "selective")


def test_policies_must_be_as_many_as_regions() -> None:
    with pytest.raises(ValueError, match="1 policies for 2 regions"):
        simulate(layers(2), ["keep"])


@pytest.mark.parametrize(("level", "held"), [(0, 1_000), (1, 500 + 125), (2, 500 + 125), (3, 125 + 125)])
def test_sharding_divides_what_is_held(level: int, held: int) -> None:
    told = simulate(layers(2), ["keep", "keep"], Placement(devices=4, level=level))  # type: ignore[arg-type]
    assert told.held_bytes == held


def test_level_three_gathers_the_parameters_of_the_region_that_runs_and_the_next() -> None:
    model = layers(3)
    keep = keep_all(model)
    whole = Simulator(model).curve(keep, Placement(devices=4, level=2))
    parts = Simulator(model).curve(keep, Placement(devices=4, level=3))
    gathered = parts - whole - (125 - 500)
    # 200 bytes are of no region and gathered throughout; each region has 100.
    assert gathered[0] == 200 + 2 * 100
    assert gathered[10] == 200 + 100  # the last region: none comes behind it
    assert gathered.max() == 200 + 2 * 100


def test_level_two_divides_gradients_once_their_region_is_through() -> None:
    model = layers(2)
    keep = keep_all(model)
    whole, parts = (Simulator(model).curve(keep, Placement(devices=2, level=level)) for level in (1, 2))
    assert (whole - parts)[-2] == 5  # of the first gradient; the second is whole still
    assert (whole - parts)[0] == 0


def test_optimizer_state_on_the_host_is_not_here() -> None:
    assert simulate(layers(1), ["keep"], Placement(optimizer_on_host=True)).held_bytes == 500


def test_gradients_that_are_held_are_counted_once() -> None:
    model = replace(layers(1), gradients_in_values=False, gradient_bytes=64)
    assert simulate(model, ["keep"]).held_bytes == 1_000 + 64
    assert simulate(model, ["keep"], Placement(devices=2, level=2)).held_bytes == 500 + 250 + 32


def test_regions_without_values_do_nothing() -> None:
    region = Region(name="a", group="a", forward=(0, 1), backward=(1, 2), input_bytes=0)
    model = replace(layers(1), values=(value(7, 0, 2),), regions=(region,), length=2, other_bytes=0)
    assert simulate(model, ["full"]).peak_bytes == 1_007
