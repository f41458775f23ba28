"""The search: its bounds are never wrong, and its front is that of the exhaustive search."""

from __future__ import annotations

import numpy as np
import pytest

from perfscope.model.errors import DataError, UsageError
from perfscope.plugins.plan.assemble import Chosen, plan_document
from perfscope.plugins.plan.candidate import Candidate, Mesh, group_of
from perfscope.plugins.plan.decoder import Decoder
from perfscope.plugins.plan.evaluate import Evaluated, Evaluator, Problem
from perfscope.plugins.plan.memory import least_state
from perfscope.plugins.plan.search import Found, Space, better, candidates, search
from perfscope.plugins.plan.sections import render_markdown, render_text
from tests.plugins.plan.problems import DENSE, EXPERTS, problem

FEW = Space(schedules=("1f1b", "interleaved", "zb-h1"), chunks=(2,), micro_batches=(1, 2), policies=("none", "full"))


def keys(found: Found) -> set[Candidate]:
    return {item.candidate for item in found.front}


@pytest.mark.parametrize(
    "case",
    [
        problem(memory="6GiB"),
        problem(EXPERTS, memory="3GiB"),
        problem(target="v5e:2x4", batch=16),
        problem(target="h100x16", batch=16, memory="4GiB"),
    ],
    ids=["node", "experts", "torus", "nodes"],
)
def test_front_of_the_pruned_search_is_that_of_the_exhaustive_one(case: Problem) -> None:
    pruned, whole = search(case, FEW, 0.1), search(case, FEW, 0.1, pruned=False)
    assert keys(pruned) == keys(whole)
    some, all_ = pruned.searched, whole.searched
    assert some.evaluated < all_.evaluated  # the bounds leave something out
    assert some.evaluated + some.too_large + some.cannot_win == some.candidates == all_.candidates


def evaluated(case: Problem, space: Space = FEW) -> list[tuple[Evaluator, Evaluated]]:
    evaluator = Evaluator(case)
    found = []
    for candidate in candidates(case, space):
        layers = evaluator.layers(candidate)
        if layers is not None:
            found.append(
                (
                    evaluator,
                    evaluator.evaluate(candidate_in_order(candidate), layers, evaluator.memory(candidate, layers)),
                )
            )
    return found


def candidate_in_order(candidate: Candidate) -> Candidate:
    from msgspec.structs import replace

    return replace(candidate, order=tuple(axis for axis, size in candidate.mesh.sizes.items() if size > 1))


@pytest.mark.parametrize("case", [problem(), problem(EXPERTS)], ids=["dense", "experts"])
def test_bounds_are_never_above_what_they_bound(case: Problem) -> None:
    for evaluator, item in evaluated(case):
        candidate = item.candidate
        assert evaluator.least_ns(candidate) <= item.low * (1 + 1e-9), candidate.words()
        assert (evaluator.least_times(candidate, item.layers) <= item.times * (1 + 1e-9)).all(), candidate.words()
        assert least_state(case.model, candidate) <= item.memory.total.low * (1 + 1e-9), candidate.words()
        assert item.memory.total.low <= item.needs


def test_parts_of_the_account_add_up_and_none_is_negative() -> None:
    for _, item in evaluated(problem(EXPERTS, target="h100x16")):
        assert np.allclose(sum(item.account.values()), item.times)
        assert all((part >= -1e-6).all() for part in item.account.values())


def test_each_axis_costs_what_it_should() -> None:
    case = problem(target="h100x16")
    evaluator = Evaluator(case)

    def step(**sizes: int) -> Evaluated:
        candidate = candidate_in_order(
            Candidate(mesh=Mesh(**sizes), micro_batch=1, schedule="1f1b" if "pipeline" in sizes else "none")
        )
        layers = evaluator.layers(candidate)
        assert layers is not None
        return evaluator.evaluate(candidate, layers, evaluator.memory(candidate, layers))

    data, fsdp, tensor, pipeline = step(data=16), step(fsdp=16), step(tensor=4, data=4), step(pipeline=4, data=4)
    assert fsdp.memory.optimizer.low == pytest.approx(data.memory.optimizer.low / 16)
    assert (tensor.account["activations"] > 0).all()
    assert not tensor.account["bubble"].any()
    assert pipeline.account["bubble"].min() > 0
    assert pipeline.memory.optimizer.low < data.memory.optimizer.low
    shared = sum(pipeline.layers)
    assert shared == DENSE.layers


def test_neighbours_along_the_first_axis_are_next_to_each_other() -> None:
    mesh = Mesh(data=2, tensor=4, fsdp=2)
    assert group_of(mesh, ("tensor", "fsdp", "data"), ("tensor",)) == (0, 1, 2, 3)
    assert group_of(mesh, ("tensor", "fsdp", "data"), ("data",)) == (0, 8)
    assert group_of(mesh, ("data", "tensor", "fsdp"), ("tensor",)) == (0, 2, 4, 6)
    assert group_of(mesh, ("tensor", "fsdp", "data"), ("fsdp", "data")) == (0, 4, 8, 12)


def test_search_puts_tensor_parallelism_inside_nodes() -> None:
    found = search(problem(target="h100x16"), Space(fixed={"tensor": 8}, micro_batches=(1,)), 0.1)
    best = next(item for item in found.front if item.candidate.mesh.fsdp == 2)
    assert best.candidate.order[0] == "tensor"


def test_a_mesh_that_is_faster_under_all_assumptions_is_not_equal() -> None:
    case = problem(target="h100x16", batch=8)
    document = plan_document(case, search(case, FEW, 0.1), Chosen(headroom=0.1, price=2.0))
    first = document.candidates[0]
    assert first.equal_to_best
    assert any(not one.equal_to_best for one in document.candidates)
    assert first.price_low is not None
    tokens = document.global_batch * document.sequence
    assert first.price_high == pytest.approx(16 * 2.0 / 3600 * first.step_high_ns / 1e9 / tokens * 1e6, rel=1e-6)
    assert {row.other for row in document.sensitivities} <= {
        number for number, one in enumerate(document.candidates) if one.equal_to_best
    }
    text = render_text(document, verbose=True)
    assert "Sensitivity of the order" in text
    assert "measure" in text
    assert render_markdown(document).startswith("### dense on 16 H100 SXM")


def test_better_is_in_every_scenario_and_in_memory() -> None:
    found = search(problem(), FEW, 0.1)
    fastest = min(found.kept, key=lambda item: item.middle)
    slow = max(found.kept, key=lambda item: item.middle)
    assert not better(slow, fastest)
    assert better(fastest, slow) == (fastest.needs <= slow.needs and bool((fastest.times < slow.times).all()))


def test_batch_that_no_mesh_divides_names_the_nearest_that_one_does() -> None:
    with pytest.raises(UsageError, match=r"--global-batch 31: no mesh of 8 devices with fsdp 8 divides it; .* is 32"):
        search(problem(batch=31), Space(fixed={"fsdp": 8}), 0.1)


def test_model_that_fits_nowhere_names_the_memory_that_a_device_would_need() -> None:
    huge = Decoder(name="huge", layers=96, hidden=12288, heads=96, kv_heads=96, head_dim=128, ffn=49152, vocab=51200)
    with pytest.raises(DataError, match=r"huge fits on no mesh: the leanest .* a device would need \d+ GiB"):
        search(problem(huge), Space(), 0.1)


def test_budget_of_no_time_is_said() -> None:
    with pytest.raises(DataError, match="--budget"):
        search(problem(), FEW, 0.1, budget_s=0.0)
