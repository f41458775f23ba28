"""The op graph says when storages die, so that a step's peak follows from it alone."""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.model.op_graph import OpGraph, live_bytes, saved_for_backward
from perfscope.profiler.torch.op_graph.capture import OpGraphCapture
from perfscope.workloads.options import Options
from tests.profiler.op_graphs import Net, named, train_step

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def allocator_peak(trace: Path) -> int:
    """Most bytes that were allocated since the recording began, from torch's own events."""
    held: dict[int, int] = {}
    now = peak = 0
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event.get("name") != "[memory]":
            continue
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        if size > 0:
            held[address] = size
        else:
            size = -held.pop(address, 0)  # what was allocated before is not counted when it goes
        now += size
        peak = max(peak, now)
    return peak


def graph_and_peak(train: Callable[[], Any], folder: Path) -> tuple[OpGraph, int]:
    """The op graph of one step of a program, and what the allocator says of a later one."""
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.profiler import ProfilerActivity, profile

    capture, profiler = OpGraphCapture(), profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    actions = {2: lambda: capture.start(2), 3: capture.stop, 4: profiler.start, 5: profiler.stop}
    steps: list[int] = []

    def boundary(*_: Any) -> None:
        steps.append(1)
        actions.get(len(steps), lambda: None)()

    hook = register_optimizer_step_post_hook(boundary)
    try:
        train()
    finally:
        hook.remove()
        torch.set_float32_matmul_precision("highest")
    capture.save(folder / "graph.json")
    profiler.export_chrome_trace(str(folder / "trace.json"))
    return read_op_graph(folder / "graph.json"), allocator_peak(folder / "trace.json")


def simulated_peak(graph: OpGraph) -> int:
    live = live_bytes(graph)
    assert live is not None
    return int(live.max())


@pytest.mark.parametrize(
    ("name", "variant", "slack"),
    [
        ("attention", "sdpa", 0.0),
        ("attention", "naive", 1e-4),
        ("moe", "index_add", 0.0),
        ("moe", "loop", 0.03),  # each step sends other tokens to other experts
        ("ssm", "scan", 0.0),
        ("ssm", "parallel", 0.0),
    ],
)
def test_the_peak_of_a_step_is_the_allocators(name: str, variant: str, slack: float, tmp_path: Path) -> None:
    from perfscope.workloads.training import train

    module = importlib.import_module(f"perfscope.workloads.{name}")
    options = Options(variant=variant, size=module.SIZES["tiny"], steps=6)
    graph, peak = graph_and_peak(lambda: train(module.Block, options), tmp_path)
    assert abs(simulated_peak(graph) - peak) <= slack * peak


@pytest.mark.parametrize(
    ("policy", "reentrant"), [("none", False), ("full", False), ("full", True), ("selective", False)]
)
def test_the_peak_under_a_checkpointing_policy(policy: str, reentrant: bool, tmp_path: Path) -> None:
    from perfscope.workloads import transformer

    size = transformer.SIZES["tiny"]
    options = Options(variant="sdpa", size=size, steps=6, policy=policy, reentrant=reentrant)
    graph, peak = graph_and_peak(lambda: transformer.train(options), tmp_path)
    # Checkpointing keeps the state of the random generator for each block: copied without an op.
    missing, state = peak - simulated_peak(graph), torch.get_rng_state().nbytes
    assert missing % state == 0
    assert 0 <= missing // state <= (0 if policy == "none" else 2 * size.layers)


def test_policies_are_ordered_by_what_they_keep(tmp_path: Path) -> None:
    from perfscope.workloads import transformer

    kept = {}
    for policy in ("none", "full", "selective"):
        options = Options(variant="sdpa", size=transformer.SIZES["tiny"], steps=6, policy=policy)
        graph, _ = graph_and_peak(functools.partial(transformer.train, options), tmp_path)
        saved = saved_for_backward(graph)
        assert saved is not None
        assert graph.storages is not None
        kept[policy] = sum(graph.storages[index].bytes for index in saved)
    assert kept["full"] < kept["selective"] < kept["none"]


def test_births_and_deaths(record: Any) -> None:
    net, x = Net(), torch.randn(2, 8)

    def program() -> None:
        y = x + 1
        z = y * 2
        del y
        z.neg_()
        torch.tensor(3.0) + 1

    graph = record(program)
    held = {op.name.split(".")[1]: graph.storages[graph.tensors[op.outputs[0]].storage] for op in graph.ops}
    add, mul = named(graph, "add")[0], named(graph, "mul")[0]
    source, y, z = (graph.tensors[index].storage for index in (add.inputs[0], add.outputs[0], mul.outputs[0]))
    assert (graph.storages[source].born, graph.storages[source].died) == (None, None)
    assert (graph.storages[y].born, graph.storages[y].died, graph.storages[y].bytes) == (0, 2, 64)
    # z goes with the function that made it, behind its last op.
    assert (graph.storages[z].born, graph.storages[z].died) == (1, len(graph.ops))
    assert held["lift_fresh"].born is not None
    assert graph.live_out == {index for index, storage in enumerate(graph.storages) if storage.died is None}
    assert net is not None


def test_a_storage_is_as_large_as_what_lies_in_it(record: Any) -> None:
    whole = torch.zeros(1000)
    graph = record(lambda: whole[:10] + 1)
    (add,) = named(graph, "add")
    seen = graph.tensors[add.inputs[0]]
    assert (seen.bytes, graph.storages[seen.storage].bytes) == (40, 4000)


def test_a_storage_that_is_resized_counts_its_largest_size(record: Any) -> None:
    whole = torch.zeros(1000)

    def program() -> None:
        whole.add_(1)
        whole.untyped_storage().resize_(0)  # as FSDP frees gathered weights
        whole.untyped_storage().resize_(4000)
        whole.add_(1)

    graph = record(program)
    assert [storage.bytes for storage in graph.storages] == [4000]


def test_what_is_cut_is_said(record: Any) -> None:
    net, x = Net(), torch.randn(2, 8)
    optimizer = torch.optim.SGD(net.parameters())
    graph = record(lambda: train_step(net, optimizer, x), limit=5)
    assert graph.truncated
    assert all(storage.died is None or storage.died <= 5 for storage in graph.storages)
