"""The structure capture: what it records of real programs."""

from __future__ import annotations

import copy
import functools
import gzip
import importlib
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.analyzers.readers.op_graph import read_op_graph
from perfscope.model.errors import UsageError
from perfscope.model.op_flops import FORMULAS, MOVES_DATA, attended_pairs, attention_flops, flops_of
from perfscope.model.op_graph import OpGraph
from perfscope.profiler.torch.op_graph.capture import OpGraphCapture, available
from perfscope.workloads.options import Options
from tests.torch_capture.op_graphs import Net, line_of, named, simulated_peak, train_step

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
pytestmark = pytest.mark.torch
newer = pytest.mark.skipif(not hasattr(torch.Tag, "reduction"), reason="ops and tags that this torch does not have")


def test_it_is_available_with_this_torch() -> None:
    assert available() is None


def test_phases_modules_and_lines(record: Any) -> None:
    net, x = Net(), torch.randn(2, 8)
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)
    train_step(net, optimizer, x)
    graph = record(lambda: train_step(net, optimizer, x))

    forward = named(graph, "addmm")
    assert [(op.phase, op.module) for op in forward] == [("forward", "Net.first"), ("forward", "Net.second")]
    assert [op.line for op in forward] == [line_of(Net.forward, "self.first"), line_of(Net.forward, "self.second")]
    assert {op.file for op in forward} == {"tests/torch_capture/op_graphs.py"}
    assert forward[0].function == "Net.forward"

    backward = named(graph, "threshold_backward")[0]
    relu = named(graph, "relu")[0]
    assert (backward.phase, backward.module, backward.line) == ("backward", "Net", relu.line)
    assert backward.sequence == relu.sequence is not None

    (step,) = [op for op in graph.ops if op.name.startswith("aten._fused_adamw_")]
    assert (step.phase, step.function) == ("optimizer", "train_step")
    # Weights, gradients (by its schema: it may unscale them) and two moments; not the step counters.
    assert len(step.mutated) == 4 * 4
    assert set(step.mutated) < set(step.inputs)


def test_gradients_of_parameters_belong_to_their_module(record: Any) -> None:
    net = Net()
    loss = net(torch.randn(2, 8)).sum()
    loss.backward(retain_graph=True)  # a second backward adds to the gradients
    graph = record(lambda: net(torch.randn(2, 8)).sum().backward())
    owners = {op.module for op in named(graph, "add_") if op.phase == "backward"}
    assert owners == {"Net.first", "Net.second"}


def test_a_custom_backward_keeps_its_own_line(record: Any) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient * 2

    x = torch.ones(4, requires_grad=True)
    first, second = named(record(lambda: Double.apply(x).sum().backward()), "mul")
    assert (first.phase, first.line) == ("forward", line_of(Double, "return x * 2"))
    assert (second.phase, second.line) == ("backward", line_of(Double, "return gradient * 2"))
    assert first.sequence == second.sequence


@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute_is_told_from_backward(record: Any, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU())
    x = torch.randn(2, 8, requires_grad=True)
    graph = record(lambda: checkpoint(net, x, use_reentrant=reentrant).sum().backward())
    again = [op for op in graph.ops if op.recompute]
    assert {op.phase for op in again} == {"backward"}
    assert [op.module for op in named(graph, "addmm") if op.recompute] == ["Sequential.0", "Sequential.2"]
    # A module of a library has no line of the program: the module that calls the checkpoint is named instead.
    call = line_of(test_recompute_is_told_from_backward, "checkpoint(net, x")
    assert {op.checkpoint and op.checkpoint[1] for op in again if op.module} == {call}
    assert {op.line for op in again if op.module} == {call}
    # After the recompute comes backward again, with the modules of the forward.
    assert {op.module for op in named(graph, "mm") if not op.recompute} == {"Sequential.0", "Sequential.2"}
    assert not any(op.recompute for op in graph.ops if op.phase == "forward")


def test_storages_of_the_dead_are_not_confused_with_those_of_the_living(record: Any) -> None:
    def program() -> None:
        for _ in range(50):  # the allocator hands the same address out again and again
            torch.zeros(1000)

    graph = record(program)
    made = [op.outputs[0] for op in named(graph, "zeros")]
    assert len({graph.tensors[tensor].storage for tensor in made}) == 50


def test_two_parts_of_one_storage_are_two_tensors(record: Any) -> None:
    x = torch.ones(2, 8)
    graph = record(lambda: torch.mul(*x.chunk(2, dim=1)))
    left, right = (graph.tensors[tensor] for tensor in named(graph, "mul")[0].inputs)
    assert left.storage == right.storage
    assert left.shape == right.shape == (2, 4)
    assert len(set(named(graph, "mul")[0].inputs)) == 2


def test_what_lives_on_and_what_are_parameters(record: Any) -> None:
    net, kept = Net(), []

    def program() -> None:
        kept.append(net(torch.randn(2, 8)))

    graph = record(program)
    storage = {tensor: graph.tensors[tensor].storage for tensor in range(len(graph.tensors))}
    result = storage[named(graph, "addmm")[1].outputs[0]]
    noise = storage[named(graph, "randn")[0].outputs[0]]
    assert result in graph.live_out
    assert graph.parameters <= graph.live_out
    assert len(graph.parameters) == 4
    # The input is held by the graph of the result, so it lives; without gradients it would not.
    assert noise in graph.live_out
    with torch.no_grad():
        graph = record(program)
    assert graph.tensors[named(graph, "randn")[0].outputs[0]].storage not in graph.live_out


def test_bytes_count_expanded_dimensions_once(record: Any) -> None:
    graph = record(lambda: torch.ones(1, 8).expand(1000, 8) + torch.ones(1000, 1))
    add = named(graph, "add")[0]
    assert [graph.tensors[tensor].bytes for tensor in add.inputs] == [8 * 4, 1000 * 4]
    assert graph.tensors[add.outputs[0]].bytes == 8000 * 4
    assert graph.tensors[add.inputs[0]].shape == (1000, 8)


def test_views_writes_and_kinds(record: Any) -> None:
    a, b = torch.ones(4, 4), torch.ones(4, 4)

    def program() -> None:
        a.t().add_(b)
        torch.add(a, b, out=b)
        torch._foreach_mul_([a, b], 2.0)
        a.clone().sum()
        torch.softmax(a, 0)
        torch.empty(3)
        a.contiguous().unsqueeze_(0)

    graph = record(program)
    written = {op.name: {graph.tensors[tensor].storage for tensor in op.mutated} for op in graph.ops if op.mutated}
    storage_a = graph.tensors[named(graph, "t")[0].inputs[0]].storage
    storage_b = graph.tensors[named(graph, "add")[0].outputs[0]].storage
    assert written == {
        "aten.add_.Tensor": {storage_a},
        "aten.add.out": {storage_b},
        "aten._foreach_mul_.Scalar": {storage_a, storage_b},
    }
    kinds = {op.name: (op.pointwise, op.reduction, op.view) for op in graph.ops}
    assert kinds["aten.t.default"] == kinds["aten.empty.memory_format"] == (False, False, True)
    assert kinds["aten.clone.default"] == kinds["aten._foreach_mul_.Scalar"] == (True, False, False)
    assert kinds["aten.sum.default"] == kinds["aten._softmax.default"] == (False, True, False)
    assert not named(graph, "sum")[0].mutated


def test_the_line_is_the_users_not_the_librarys(record: Any) -> None:
    x = torch.ones(3)
    graph = record(lambda: copy.deepcopy(x))
    assert named(graph, "copy_")
    assert {op.file for op in graph.ops} == {"tests/torch_capture/test_op_graph.py"}


def test_the_limit_truncates_and_says_so(record: Any) -> None:
    def program() -> None:
        for _ in range(10):
            torch.ones(1)

    assert (len((graph := record(program, limit=10)).ops), graph.truncated) == (10, False)
    assert (len((graph := record(program, limit=9)).ops), graph.truncated) == (9, True)


def test_fake_tensors(record: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    def program() -> None:
        with FakeTensorMode():
            a = torch.empty(3, 4)
            a @ a.t()

    (product,) = named(record(program), "mm")
    assert product.flops == 2 * 3 * 4 * 3


def test_subclasses_show_the_ops_on_their_parts(record: Any) -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    graph = record(lambda: TwoTensor(torch.ones(2), torch.zeros(2)) * 2)
    assert len(named(graph, "mul")) == 2


def test_sparse_tensors(record: Any) -> None:
    sparse = torch.eye(3).to_sparse_coo()
    graph = record(lambda: sparse @ torch.ones(3, 3))
    (product,) = named(graph, "mm")
    assert product.flops is None  # not those of its shape
    # 3 values of 4 bytes, 2 * 3 indices of 8.
    assert graph.tensors[product.inputs[0]].bytes == 3 * 4 + 6 * 8


def test_function_transforms(record: Any) -> None:
    x = torch.ones(3)
    graph = record(lambda: torch.func.grad(lambda a: (a * a).sum())(x))
    assert {op.phase for op in named(graph, "mul")} == {"forward", "backward"}


def test_misuse_is_said(tmp_path: Path) -> None:
    capture = OpGraphCapture()
    with pytest.raises(UsageError, match="no op graph to save"):
        capture.save(tmp_path / "graph.json")
    capture.start(0)
    with pytest.raises(UsageError, match="called twice"):
        capture.start(1)
    capture.stop()
    capture.stop()


def test_the_file_is_what_it_says(record: Any, tmp_path: Path) -> None:
    graph = record(lambda: torch.ones(2))
    document = json.loads(gzip.decompress((tmp_path / "structure.opgraph.json.gz").read_bytes()))
    assert document["schema"] == "perfscope.op_graph/1"
    assert (graph.step, graph.device, graph.truncated) == (3, "cpu", False)
    assert (document["libraries"], graph.libraries) == ([], frozenset())
    assert [path.name for path in tmp_path.iterdir()] == ["structure.opgraph.json.gz"]


functional = torch.nn.functional


def counted(program: Any) -> dict[str, list[int | None]]:
    """FLOPs by op, of the ops other than views, straight from the table."""
    capture = OpGraphCapture()
    capture.start(0)
    program()
    capture.stop()
    table = capture._table
    assert table is not None
    result: dict[str, list[int | None]] = {}
    for op in range(len(table)):
        if not table._ops["view"][op]:
            result.setdefault(table._texts[table._ops["name"][op]], []).append(table._ops["flops"][op])
    return result


def total(program: Any) -> int:
    return sum(flops or 0 for row in counted(program).values() for flops in row)


PROGRAMS = {
    "linear": lambda: torch.nn.Linear(5, 7)(torch.ones(3, 5)).sum().backward(),
    "matmul": lambda: torch.ones(2, 3, 4) @ torch.ones(2, 4, 5),
    "baddbmm": lambda: torch.baddbmm(torch.ones(2, 3, 5), torch.ones(2, 3, 4), torch.ones(2, 4, 5)),
    "conv2d": lambda: torch.nn.Conv2d(4, 6, 3, padding=1)(torch.ones(2, 4, 5, 5, requires_grad=True)).sum().backward(),
    "conv transposed": lambda: (
        torch.nn.ConvTranspose2d(4, 6, 3, stride=2)(torch.ones(2, 4, 5, 5, requires_grad=True)).sum().backward()
    ),
    "grouped conv": lambda: torch.nn.Conv1d(4, 8, 3, groups=2)(torch.ones(2, 4, 9)),
    "inference": torch.inference_mode()(
        lambda: (torch.nn.Conv2d(4, 6, 3)(torch.ones(2, 4, 5, 5)), torch.ones(2, 3, 4) @ torch.ones(2, 4, 5))
    ),
    "no formula": lambda: torch.ones(3).sin(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_many_as_torch_counts(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        PROGRAMS[name]()
    assert total(PROGRAMS[name]) == counter.get_total_flops()


def test_gradients_of_a_grouped_convolution_cost_as_much_as_its_forward() -> None:
    # torch.utils.flop_counter forgets the groups in the gradient of the weight, so it cannot be the oracle here.
    found = counted(grouped_convolution)
    assert found["aten.convolution_backward.default"] == [2 * found["aten.convolution.default"][0]]  # type: ignore[operator]
    assert found["aten.convolution.default"] == [2 * 2 * 8 * 7 * 3 * 2]  # 2 FLOPs, B, C_out, L_out, taps, C_in / groups


def grouped_convolution() -> None:
    torch.nn.Conv1d(4, 8, 3, groups=2)(torch.ones(2, 4, 9, requires_grad=True)).sum().backward()


@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_the_cpu(causal: bool) -> None:
    q, k, v = (torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(3))
    found = counted(lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward())
    pairs = 2 * 3 * (8 * 9 // 2 if causal else 64)
    assert found["aten._scaled_dot_product_flash_attention_for_cpu.default"] == [2 * pairs * (4 + 4)]
    assert found["aten._scaled_dot_product_flash_attention_for_cpu_backward.default"] == [2 * pairs * 5 * 4]


@newer
def test_full_attention_is_what_torch_counts_on_a_gpu() -> None:
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    query, key, value = (2, 8, 16, 32), (2, 4, 24, 32), (2, 4, 24, 48)
    assert attention_flops(query, key, value, causal=False) == sdpa_flop_count(query, key, value)
    gradient = (2, 8, 16, 48)
    backward = attention_flops(query, key, value, causal=False, backward=True)
    assert backward == sdpa_backward_flop_count(gradient, query, key, value)


@given(st.integers(1, 12), st.integers(1, 12))
def test_causal_pairs_are_those_of_the_mask(queries: int, keys: int) -> None:
    mask = torch.ones(queries, keys, dtype=torch.bool).tril()
    assert attended_pairs(queries, keys, causal=True) == int(mask.sum())
    assert attended_pairs(queries, keys, causal=False) == queries * keys


@newer
def test_a_grouped_product_is_the_sum_of_its_groups() -> None:
    x, weights = torch.ones(16, 32, dtype=torch.bfloat16), torch.ones(2, 32, 8, dtype=torch.bfloat16)
    ends = torch.tensor([4, 16], dtype=torch.int32)
    found = counted(lambda: torch._grouped_mm(x, weights, offs=ends))
    by_hand = sum(2 * rows * 32 * 8 for rows in (4, 12))
    assert found["aten._grouped_mm.default"] == [by_hand]


def test_moving_data_costs_none_and_unknown_stays_unknown() -> None:
    found = counted(lambda: (torch.ones(4, 4).t().contiguous() * 2).exp())
    assert found["aten.clone.default"] == found["aten.ones.default"] == [0]
    assert found["aten.mul.Tensor"] == found["aten.exp.default"] == [None]


def test_scaled_products_are_products() -> None:
    a, b = torch.empty(16, 32), torch.empty(32, 8)
    arguments = {"self": a, "mat2": b}
    heads = dict.fromkeys(("query", "key", "value"), torch.ones(2, 8, 16))
    whole = flops_of("aten.scaled_dot_product_attention.default", heads.get, ())
    assert whole == attention_flops(*[(1, 2, 8, 16)] * 3, causal=False)
    assert flops_of("aten._scaled_mm.default", arguments.get, ()) == 2 * 16 * 32 * 8


@newer
def test_every_name_is_an_op_of_torch() -> None:
    absent = [name for name in (*FORMULAS, *MOVES_DATA) if not hasattr(torch.ops.aten, name.removeprefix("aten."))]
    assert absent == []


def read_item(x: Any) -> None:
    x.sum().item()


def read_float(x: Any) -> None:
    float(x.sum())


def branch(x: Any) -> None:
    if x.sum():
        pass


def negate(x: Any) -> None:
    assert not (x.sum() < 0)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (read_item, "item"),
        (read_float, "item"),
        (lambda x: bool(x.sum()), "item"),
        (lambda x: F.one_hot(x.long(), x[0, 0].int().item() + 1), "item"),
        (branch, "bool"),
        (negate, "bool"),
        (torch.nonzero, "nonzero"),
        (lambda x: torch.where(x > 0), "nonzero"),
        (lambda x: x[x > 0], "boolean index"),
        (lambda x: x.__setitem__(x > 0, torch.ones(6)), "boolean index"),
        (lambda x: torch.masked_select(x, x > 0), "masked_select"),
        (torch.unique, "unique"),
        (lambda x: torch.equal(x, x + 0), "equal"),
        (lambda x: torch.repeat_interleave(x, torch.tensor([1, 2]), dim=0), "repeat_interleave"),
    ],
)
def test_host_reads(record: Any, program: Any, reason: str) -> None:
    x = torch.ones(2, 3)
    assert [op.host_read for op in record(lambda: program(x)).ops if op.host_read] == [reason]


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x[torch.tensor([0, 1])],
        lambda x: torch.where(x > 0, x, 0),
        lambda x: torch.repeat_interleave(x, torch.tensor([1, 2]), dim=0, output_size=3),
        lambda x: x.masked_fill(x > 0, 1),
        lambda x: x.__setitem__(x > 0, -float("inf")),
        lambda x: x.to("cpu", torch.float64),
        lambda x: F.one_hot(x.long(), 3),  # checks its input, on the CPU alone
    ],
)
def test_what_the_host_need_not_wait_for(record: Any, program: Any) -> None:
    x = torch.ones(2, 3)
    assert not [op.host_read for op in record(lambda: program(x)).ops if op.host_read]


def test_step_counters_of_the_optimizer_live_on_the_host(record: Any) -> None:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False, fused=False)
    graph = record(lambda: train_step(net, optimizer, torch.randn(2, 8)))
    reads = named(graph, "_local_scalar_dense")
    assert {op.phase for op in reads} == {"optimizer"}
    assert {op.host_read for op in reads} == {None}


def test_data_loading_stays_on_the_host(record: Any) -> None:
    class Numbers(torch.utils.data.Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return torch.ones(3).nonzero()

    graph = record(lambda: list(torch.utils.data.DataLoader(Numbers())))
    assert {op.host_read for op in named(graph, "nonzero")} == {None}


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
    """The op graph of one step of a program, and the allocator's peak of a later one."""
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


def saved_bytes(graph: OpGraph) -> int:
    """Bytes of storages made by a forward op and alive when the first backward after it begins."""
    assert graph.storages is not None
    begins = [after.index for op, after in pairwise(graph.ops) if op.phase != "backward" and after.phase == "backward"]
    saved = 0
    for storage in graph.storages:
        if storage.born is not None and graph.ops[storage.born].phase == "forward":
            begin = next((index for index in begins if index > storage.born), None)
            saved += storage.bytes if begin is not None and (storage.died is None or storage.died > begin) else 0
    return saved


def test_policies_are_ordered_by_what_they_keep(tmp_path: Path) -> None:
    from perfscope.workloads import transformer

    kept = {}
    for policy in ("none", "full", "selective"):
        options = Options(variant="sdpa", size=transformer.SIZES["tiny"], steps=6, policy=policy)
        graph, _ = graph_and_peak(functools.partial(transformer.train, options), tmp_path)
        kept[policy] = saved_bytes(graph)
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
    # z is freed with the function that made it, after its last op.
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
