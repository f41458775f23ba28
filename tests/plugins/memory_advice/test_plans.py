"""The greedy order, the front, the budget, sharding and its price, and the words for all of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from types import SimpleNamespace
from typing import cast

import pytest
from msgspec.structs import replace

from perfscope.analyzers.devices import named_device
from perfscope.model.finding import AbstainError
from perfscope.model.op_flops import BATCHED_PRODUCTS, CONVOLUTIONS, PRODUCTS
from perfscope.model.op_graph import GraphOp, GraphStorage, GraphTensor, OpGraph
from perfscope.plugins.memory_advice import sections as advice
from perfscope.plugins.memory_advice.plans import (
    MOST_SHOWN,
    Links,
    device_of,
    greedy,
    groups_of,
    links_of,
    placements,
    plan_memory,
    transfer,
)
from perfscope.plugins.memory_advice.remat_bargain import remat_bargain
from perfscope.plugins.memory_advice.sections import plans_report
from perfscope.plugins.memory_advice.simulate import HERE, KEPT_KINDS, Placement, Simulator, keep_all, simulate
from perfscope.plugins.memory_advice.step_model import POLICIES, StepModel
from perfscope.plugins.memory_advice.step_model_torch import kind_of, torch_step_model
from perfscope.plugins.memory_advice.wording import code_for, describe
from tests.graphs import GraphBuilder
from tests.plugins.memory_advice.recorded import trace_of
from tests.plugins.memory_advice.steps import checkpointed, layers, value


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
    assert tight.recommended is None
    assert tight.needs(tight.today) == round(1.2 * peak)


def test_today_is_what_is_checkpointed_now() -> None:
    plans = plan_memory(checkpointed(layers(3)))
    assert set(plans.today.policies) == {"full"}
    assert plans.today.added_low_ns == 0
    quickest = min(plans.front, key=lambda plan: plan.added_low_ns)
    assert quickest.added_low_ns == -plans.today.simulation.recompute_ns


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
    assert hosted.added_high_ns is None  # the update takes an unknown time on the host


def test_code_of_a_jax_program_names_its_policies() -> None:
    model = replace(layers(3), framework="jax", on_host=True)
    plan = next(one for one in plan_memory(model).front if "selective" in one.policies)
    code = "\n".join(code_for(model, plan))
    assert "dots_with_no_batch_dims_saveable" in code
    compile(code, "advice", "exec")


def test_the_printed_policy_keeps_what_the_simulation_keeps() -> None:
    plan = next(one for one in plan_memory(replace(layers(3), on_host=True)).front if "selective" in one.policies)
    code = "\n".join(code_for(layers(3), plan))
    names = {"CheckpointPolicy": SimpleNamespace(MUST_SAVE=True, PREFER_RECOMPUTE=False)}
    exec(code[code.index("KEPT =") : code.index("contexts =")], names)
    keeps = cast("Callable[..., bool]", names["policy"])
    attention = [f"_scaled_dot_product_{kind}_attention" for kind in ("flash", "efficient", "cudnn")]
    ops = [*PRODUCTS, *CONVOLUTIONS, *attention, "_flash_attention_forward", "relu", "_softmax", "cat"]
    kept = {op for op in ops if keeps(None, SimpleNamespace(__name__=f"{op}.default"))}
    assert {"mm", "addmm", "convolution", *attention} <= kept
    assert kept.isdisjoint(BATCHED_PRODUCTS)
    graph = GraphBuilder()
    operand = graph.input((4, 4))
    for op in ops:
        graph.op(op, [operand])
    assert kept == {op for op, made in zip(ops, graph.graph().ops, strict=True) if kind_of(made) in KEPT_KINDS}


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


MODULES = ["", "Net", "Net.blocks.0", "Net.blocks.1", "Net.blocks.1.x.3", "Net.0", "0", "a..b", ".", "Net.blocks.0.mlp"]
OPS = ["aten.mm.default", "aten.add.Tensor", "aten.relu_.default", "x"]


def senseless(seed: int) -> OpGraph:
    r = random.Random(seed)
    ops, storages = r.randint(2, 40), r.randint(1, 15)

    def tensor() -> GraphTensor:
        device = r.choice(["cpu", "cuda"])
        return GraphTensor(storage=r.randrange(storages), shape=(4,), dtype="float32", device=device, bytes=16)

    def op(index: int) -> GraphOp:
        return GraphOp(
            index=index, name=r.choice(OPS), phase=r.choice(["forward", "backward", "optimizer", "other"]),
            inputs=tuple(r.randrange(20) for _ in range(r.randint(1, 3))),
            outputs=tuple(r.randrange(20) for _ in range(r.randint(0, 2))),
            mutated=(), pointwise=False, reduction=False, view=r.random() < 0.2, flops=None, module=r.choice(MODULES),
            file=None, line=None, function=None, sequence=r.choice([None, 1, 2, 3, 4]), recompute=r.random() < 0.2,
        )  # fmt: skip

    def storage() -> GraphStorage:
        born = r.choice([None, r.randrange(ops)])
        died = r.choice([None, r.randint((born or 0) + 1, ops)])
        return GraphStorage(bytes=r.randint(0, 100), born=born, died=died)

    return OpGraph(
        step=0, device=r.choice(["cpu", "cuda"]), ops=tuple(op(index) for index in range(ops)),
        tensors=tuple(tensor() for _ in range(20)), live_out=frozenset(), parameters=frozenset({0}),
        storages=tuple(storage() for _ in range(storages)),
    )  # fmt: skip


@pytest.mark.parametrize("first", range(0, 120, 20))
def test_senseless_graphs(first: int) -> None:
    judged = 0
    for seed in range(first, first + 20):
        trace = trace_of(senseless(seed))
        try:
            model = trace.fact(torch_step_model)
        except AbstainError:
            continue
        simulator = Simulator(model)
        for policy in POLICIES:
            told = simulator.run([policy] * len(model.regions))
            curve = simulator.curve([policy] * len(model.regions), HERE)
            assert told.peak_bytes == curve.max()
            assert curve.min() >= told.held_bytes
        view = plans_report(plan_memory(model, budget_bytes=500, devices=8, device="H100"), "x")
        assert advice.render_text(view)
        assert advice.render_html(view)
        remat_bargain(trace)
        judged += 1
    assert judged >= 10


def test_a_graph_that_names_an_op_which_is_not_there_is_refused() -> None:
    graph = senseless(1)
    storages = (*(graph.storages or ()), GraphStorage(bytes=1, born=len(graph.ops), died=None))
    broken = OpGraph(
        step=0, device=graph.device, ops=graph.ops, tensors=graph.tensors, live_out=frozenset(),
        parameters=frozenset(), storages=storages,
    )  # fmt: skip
    with pytest.raises(AbstainError, match="damaged"):
        trace_of(broken).fact(torch_step_model)


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
    # The product and the activation of each layer; the temporary and the output end after their last reader.
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
    assert last.peak_bytes == 1_000 + 156 + 140 + 10  # the first layer's values still wait at the same time
    assert first.peak_bytes < last.peak_bytes


def test_selective_keeps_products() -> None:
    model = layers(2)
    told = simulate(model, ["selective", "selective"])
    assert told.recompute_ns == 2 * 10
    full, kept = simulate(model, ["full", "full"]), simulate(model, keep_all(model))
    assert full.peak_bytes < told.peak_bytes < kept.peak_bytes
    assert told.peak_bytes == full.peak_bytes + 40  # the first layer's product with the second's forward


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
    assert gathered[10] == 200 + 100  # the last region: no other follows
    assert gathered.max() == 200 + 2 * 100


def test_level_two_divides_gradients_once_their_region_is_through() -> None:
    model = layers(2)
    keep = keep_all(model)
    whole, parts = (Simulator(model).curve(keep, Placement(devices=2, level=level)) for level in (1, 2))
    assert (whole - parts)[-2] == 5  # of the first gradient; the second is whole still
    assert (whole - parts)[0] == 0


def test_gradients_that_are_held_are_counted_once() -> None:
    model = replace(layers(1), gradients_in_values=False, gradient_bytes=64)
    assert simulate(model, ["keep"]).held_bytes == 1_000 + 64
    assert simulate(model, ["keep"], Placement(devices=2, level=2)).held_bytes == 500 + 250 + 32


def test_offloading_is_not_looked_at_where_there_is_no_device() -> None:
    front = plan_memory(replace(layers(3), on_host=True)).front
    assert not any("offload" in plan.policies or plan.placement.optimizer_on_host for plan in front)
