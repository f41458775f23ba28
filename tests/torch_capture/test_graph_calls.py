"""Sampled calls of models: which graphs no backward pass uses, and at which line."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from perfscope.profiler.torch.graph_calls import MOST_SAMPLES, GraphCalls
from perfscope.profiler.torch.program_facts import ProgramFacts

pytestmark = pytest.mark.torch


@pytest.fixture
def calls() -> Iterator[GraphCalls]:
    facts = ProgramFacts()
    facts.watch()
    yield facts.graph_calls
    facts.stop()
    assert not hasattr(nn.Module.eval, "__wrapped__")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def forward(model: nn.Module, rows: int = 3) -> torch.Tensor:
    output: torch.Tensor = model(torch.ones(rows, 4))
    return output


FORWARD = inspect.getsourcelines(forward)[1] + 1


def test_evaluation_with_gradients_is_found_at_its_call(calls: GraphCalls) -> None:
    model = net().eval()
    for _ in range(5):
        forward(model)
    ((kind, (file, line), count),) = calls.unused()
    assert (kind, line, count) == ("Sequential", FORWARD, 5)
    assert file.endswith("test_graph_calls.py")


def test_samples_are_few(calls: GraphCalls) -> None:
    model = net().eval()
    for _ in range(MOST_SAMPLES + 9):
        forward(model)
    assert [count for *_, count in calls.unused()] == [MOST_SAMPLES]


def test_without_gradients_there_is_no_graph(calls: GraphCalls) -> None:
    model = net().eval()
    with torch.no_grad():
        forward(model)
    with torch.inference_mode():
        forward(model)
    forward(net().eval().requires_grad_(False))
    assert not list(calls.unused())


def test_outputs_that_a_later_backward_pass_uses_are_no_waste(calls: GraphCalls) -> None:
    policy = net().eval()
    kept = [forward(policy)[0, 0] for _ in range(4)]
    policy.train()
    assert [count for *_, count in calls.unused()] == [4]  # as far as is known by now
    torch.stack(kept).sum().backward()
    assert not list(calls.unused())


def test_gradients_of_inputs_are_a_backward_pass(calls: GraphCalls) -> None:
    model = net().eval()
    for _ in range(3):
        x = torch.ones(2, 4, requires_grad=True)
        torch.autograd.grad(model(x).sum(), x)
    assert not list(calls.unused())


def test_of_a_function_that_training_shares_the_caller_is_named(calls: GraphCalls) -> None:
    model = net()
    model.eval()
    forward(model).sum().backward()
    for _ in range(3):
        line = inspect.currentframe().f_lineno + 1  # type: ignore[union-attr]
        forward(model)
    ((_, (_, found), count),) = calls.unused()
    assert (found, count) == (line, 3)


def test_a_program_that_compiles_has_the_same_graphs(calls: GraphCalls) -> None:
    model = net().eval()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert "__call__" not in vars(nn.Sequential)
    with torch.no_grad():
        forward(compiled)
    net().eval()
    assert "__call__" not in vars(nn.Sequential)


def test_transforms_of_functions_are_left_alone(calls: GraphCalls) -> None:
    model = net().eval()
    weights = dict(model.named_parameters())

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        output: torch.Tensor = torch.func.functional_call(model, parameters, (torch.ones(2, 4),))
        return output.sum()

    torch.func.grad(loss)(weights)
    assert not list(calls.unused())


def test_results_and_gradients_are_those_without_samples() -> None:
    def run() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = net().eval()
        output = forward(model)
        output.square().sum().backward()
        return [output.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]

    bare = run()
    facts = ProgramFacts()
    facts.watch()
    try:
        sampled = run()
    finally:
        facts.stop()
    assert all(map(torch.equal, bare, sampled))


def test_starts_of_workers_are_counted_by_loader() -> None:
    facts = ProgramFacts()
    facts.watch()
    try:
        kept = torch.utils.data.DataLoader(torch.arange(4), num_workers=1)
        for _ in range(2):
            assert len(list(kept)) == 4
        assert len(list(torch.utils.data.DataLoader(torch.arange(4)))) == 4  # no workers
        starts = [(fact.value, fact.count) for fact in facts.noted() if fact.name == "loader_start"]
    finally:
        facts.stop()
    assert starts == [("same loader", 2)]
