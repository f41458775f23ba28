"""Graphs that make no sense give plans or a reason, and never fewer bytes than are held."""

from __future__ import annotations

import random

import pytest

from perfscope.analyzers.advice.plans import plan_memory
from perfscope.analyzers.advice.simulate import HERE, Simulator
from perfscope.analyzers.advice.step_model import POLICIES
from perfscope.analyzers.advice.step_model_torch import torch_step_model
from perfscope.analyzers.facts.remat_bargain import remat_bargain
from perfscope.analyzers.finding import AbstainError
from perfscope.analyzers.op_graph import GraphOp, GraphStorage, GraphTensor, OpGraph
from perfscope.dashboards.reports import advice_plan_html, advice_plan_text
from perfscope.dashboards.reports.advice_plan_rows import plans_view
from tests.analyzers.advice.recorded import trace_of

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
        view = plans_view(plan_memory(model, budget_bytes=500, devices=8, device="H100"), "x")
        assert advice_plan_text.render(view)
        assert advice_plan_html.render(view)
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
