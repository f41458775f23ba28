"""Groups against brute force: convex, schedulable together, and bytes counted another way."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfscope.analyzers.graph.op_flow import WRITE_ONLY
from perfscope.analyzers.ops.fusion import FusionGroup, find_groups, forward_chains
from perfscope.model.op_graph import OpGraph
from tests.build import TraceBuilder
from tests.graphs import GraphBuilder


def test_a_chain_is_one_group_and_its_intermediates_are_the_saving():
    g = GraphBuilder()
    x, b = g.input((4, 8)), g.input((8,))
    a = g.op("add", [x, b])
    m = g.op("mul", [a, x])
    y = g.op("silu", [m])
    (group,) = find_groups(g.graph(live=[y]))
    size = 4 * 8 * 4
    assert group.ops == (0, 1, 2)
    assert group.eager_bytes == (size + 32 + size) + (3 * size) + (2 * size)
    assert group.fused_bytes == size + 32 + size
    assert group.saved_bytes == 5 * size


def test_what_the_backward_reads_is_still_written():
    g = GraphBuilder()
    x = g.input((4, 8))
    a = g.op("mul", [x, x])
    y = g.op("silu", [a])
    g.op("mm", [a, y], shape=(8, 8), phase="backward")
    (group,) = find_groups(g.graph())
    assert group.fused_bytes == 3 * 128  # x in, a and y out


def test_views_are_transparent():
    g = GraphBuilder()
    x = g.input((4, 8))
    a = g.op("mul", [x, x])
    y = g.op("silu", [g.view(a, (32,))])
    (group,) = find_groups(g.graph(live=[y]))
    assert group.ops == (0, 2)
    assert group.fused_bytes == 2 * 128


def test_a_reader_of_a_part_does_not_join():
    g = GraphBuilder()
    x = g.input((4, 8))
    a = g.op("mul", [x, x])
    y = g.op("neg", [g.view(a, (4, 4), "slice")])
    assert find_groups(g.graph(live=[y])) == ()


def test_a_path_through_a_matmul_splits_the_group():
    g = GraphBuilder()
    x, w = g.input((8, 8)), g.input((8, 8))
    a = g.op("mul", [x, x])
    h = g.op("mm", [a, w])
    y = g.op("add", [h, a])
    assert find_groups(g.graph(live=[y])) == ()


def test_a_chain_waits_for_a_matmul_that_does_not_depend_on_it():
    g = GraphBuilder()
    x, w = g.input((8, 8)), g.input((8, 8))
    a = g.op("silu", [x])
    h = g.op("mm", [w, w])
    y = g.op("mul", [a, h])
    (group,) = find_groups(g.graph(live=[y]))
    assert group.ops == (0, 2)


def test_norm_fuses_through_its_reduction():
    g = GraphBuilder()
    x, w = g.input((4, 8)), g.input((8,))
    square = g.op("pow", [x])
    mean = g.op("mean", [square], shape=(4, 1))
    scale = g.op("rsqrt", [mean])
    y = g.op("mul", [g.op("mul", [x, scale]), w])
    (group,) = find_groups(g.graph(live=[y]))
    assert len(group.ops) == 5
    assert group.fused_bytes == 128 + 32 + 128


def test_nothing_joins_after_a_reduction_to_a_scalar():
    g = GraphBuilder()
    x = g.input((4, 8))
    total = g.op("sum", [g.op("pow", [x])], shape=())
    y = g.op("div", [x, total])
    (group,) = find_groups(g.graph(live=[y]))
    assert group.ops == (0, 1)


def test_an_overwritten_value_orders_its_other_readers():
    g = GraphBuilder()
    x = g.input((4, 8))
    a = g.op("mul", [x, x])
    b = g.op("silu", [a])
    g.op("add_", [a, x])
    y = g.op("mul", [a, b])
    groups = find_groups(g.graph(live=[y]))
    assert sorted(group.ops for group in groups) == [(0, 1), (2, 3)]


def test_in_place_chains_of_an_optimizer_join():
    g = GraphBuilder()
    p, grad, m = g.input((64,)), g.input((64,)), g.input((64,))
    g.op("mul_", [m], phase="optimizer")
    g.op("add_", [m, grad], phase="optimizer")
    g.op("add_", [p, m], phase="optimizer")
    (group,) = find_groups(g.graph(live=[p, m]))
    assert group.ops == (0, 1, 2)
    assert group.fused_bytes == 256 * 5


def test_a_host_read_and_a_phase_end_a_group():
    g = GraphBuilder()
    x = g.input((4, 8))
    a = g.op("mul", [x, x])
    g.op("_local_scalar_dense", [x], shape=(), host_read="item")
    b = g.op("silu", [a])
    g.op("neg", [b], phase="backward")
    assert find_groups(g.graph()) == ()


def test_foreach_and_other_devices_stay_out():
    g = GraphBuilder()
    x = g.input((4, 8))
    a = g.op("_foreach_add", [x])
    b = g.op("mul", [a, a])
    c = g.op("_to_copy", [b], device="cuda")
    g.op("silu", [c], device="cuda")
    assert find_groups(g.graph()) == ()


NAMES = ("add", "mul_", "silu", "mm", "mean", "view", "half", "copy_", "broadcast", "item")


@st.composite
def graphs(draw: st.DrawFn) -> OpGraph:
    g = GraphBuilder()
    values = [g.input((4, 8)), g.input((4, 8)), g.input((8,))]
    for name in draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=14)):
        first, second = (draw(st.sampled_from(values)) for _ in range(2))
        shape = g.tensors[first].shape
        if name == "view":
            values.append(g.view(first, (math.prod(shape),)))
        elif name == "half":
            values.append(g.view(first, (*shape[:-1], max(1, shape[-1] // 2)) if shape else (), "slice"))
        elif name == "mean":
            values.append(g.op("mean", [first], shape=(*shape[:-1], 1) if shape else ()))
        elif name == "item":
            g.op("_local_scalar_dense", [first], shape=(), host_read="item")
        elif name == "broadcast":
            values.append(g.op("mul", [first], shape=(2, *shape)))
        else:
            values.append(g.op(name, [first, second]))
    return g.graph(live=draw(st.lists(st.sampled_from(values), max_size=3)))


def dependencies(graph: OpGraph) -> list[set[int]]:
    """By op: all ops it must follow, from pairwise conflicts on storages, closed."""
    touched = [
        ({graph.tensors[t].storage for t in op.inputs}, {graph.tensors[t].storage for t in (*op.outputs, *op.mutated)})
        for op in graph.ops
    ]
    before: list[set[int]] = []
    for late, op in enumerate(graph.ops):
        found: set[int] = set()
        for early in range(late):
            if op.view or graph.ops[early].view:
                continue
            (reads, writes), (early_reads, early_writes) = touched[late], touched[early]
            if writes & (early_reads | early_writes) or reads & early_writes:
                found |= {early} | before[early]
        before.append(found)
    return before


def values_read(graph: OpGraph, op_index: int) -> Iterator[int]:
    op = graph.ops[op_index]
    most = {t.storage: max(u.bytes for u in graph.tensors if u.storage == t.storage) for t in graph.tensors}
    for tensor in dict.fromkeys(op.inputs):
        seen = graph.tensors[tensor]
        whole = seen.bytes == most[seen.storage]
        if op.name.rpartition(".")[0] in WRITE_ONLY and tensor in op.mutated and whole:
            continue
        yield tensor


def brute_bytes(graph: OpGraph, group: FusionGroup) -> tuple[int, int]:
    """(eager, fused) of a group by replaying the step and looking at every reader of every write."""
    most = {t.storage: max(u.bytes for u in graph.tensors if u.storage == t.storage) for t in graph.tensors}

    def size(tensors: set[int]) -> int:
        parts: dict[int, int] = {}
        for storage in {graph.tensors[t].storage for t in tensors}:
            whole = any(
                graph.tensors[t].storage == storage and graph.tensors[t].bytes == most[storage] for t in tensors
            )
            some = sum(graph.tensors[t].bytes for t in tensors if graph.tensors[t].storage == storage)
            parts[storage] = most[storage] if whole else min(some, most[storage])
        return sum(parts.values())

    def writer_of(storage: int, before: int) -> int | None:
        for index in range(before - 1, -1, -1):
            op = graph.ops[index]
            if not op.view and storage in {graph.tensors[t].storage for t in (*op.outputs, *op.mutated)}:
                return index
        return None

    inside = set(group.ops)
    eager = sum(
        size(set(values_read(graph, i))) + size({*graph.ops[i].outputs, *graph.ops[i].mutated}) for i in group.ops
    )
    external = {
        tensor
        for i in group.ops
        for tensor in values_read(graph, i)
        if writer_of(graph.tensors[tensor].storage, i) not in inside
    }
    live: set[int] = set()
    for late, op in enumerate(graph.ops):
        if late not in inside and not op.view:
            for tensor in values_read(graph, late):
                storage = graph.tensors[tensor].storage
                if writer_of(storage, late) in inside:
                    live.add(storage)
    live |= {storage for storage in graph.live_out if writer_of(storage, len(graph.ops)) in inside}
    written = {t for i in group.ops for t in (*graph.ops[i].outputs, *graph.ops[i].mutated)}
    return eager, size(external) + size({t for t in written if graph.tensors[t].storage in live})


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_groups_are_convex_disjoint_and_schedulable_together(graph: OpGraph):
    groups = find_groups(graph)
    before = dependencies(graph)
    home = {op: number for number, group in enumerate(groups) for op in group.ops}
    assert len(home) == sum(len(group.ops) for group in groups)
    for group in groups:
        inside = set(group.ops)
        for late in inside:
            for between in before[late] - inside:
                assert not before[between] & inside, f"{between} lies on a path through {group.ops}"
    contracted: dict[object, set[object]] = {}
    for late in range(len(graph.ops)):
        node = home.get(late, ("op", late))
        contracted.setdefault(node, set()).update(
            home.get(early, ("op", early)) for early in before[late] if home.get(early, ("op", early)) != node
        )
    done: set[object] = set()
    while len(done) < len(contracted):
        ready = {node for node, needs in contracted.items() if node not in done and needs <= done}
        assert ready, "the fused kernels wait for each other in a circle"
        done |= ready


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_bytes_equal_a_replay(graph: OpGraph):
    for group in find_groups(graph):
        assert (group.eager_bytes, group.fused_bytes) == brute_bytes(graph, group)
        assert 0 <= group.fused_bytes <= group.eager_bytes


@pytest.mark.slow
def test_a_hundred_thousand_ops_group_completely():
    g = GraphBuilder()
    x = g.input((4, 8))
    for _ in range(10_000):
        a = g.op("mul", [x, x])
        for _ in range(8):
            a = g.op("silu", [a])
        x = g.op("mm", [a, x], shape=(4, 8))
    groups = find_groups(g.graph(live=[x]))
    assert len(groups) == 10_000
    assert all(len(group.ops) == 9 for group in groups)


ELEMENTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::f>"
Op = tuple[str, list[list[int]], list[str]]
BIG, ROW = [64, 128], [64, 1]


def trace_of(ops: list[Op], *, kernel: str = ELEMENTWISE, around: str | None = None, streams: list[int] | None = None):
    t = TraceBuilder()
    if around:
        t.op(around, 0, 10 * len(ops) + 5)
    for number, (name, shapes, dtypes) in enumerate(ops):
        t.op(name, 10 * number + 1, 10 * number + 9, external_id=number, shapes=json.dumps(shapes),
             dtypes=json.dumps(dtypes))  # fmt: skip
        t.kernel(kernel, 100 + 10 * number, 110 + 10 * number, external_id=number,
                 stream=streams[number] if streams else 7)  # fmt: skip
    return t.build()


NORM: list[Op] = [
    ("aten::rsqrt", [ROW], ["float"]),
    ("aten::mul", [BIG, ROW], ["float", "float"]),
    ("aten::copy_", [BIG, BIG, []], ["c10::BFloat16", "float", "Scalar"]),
    ("aten::mul", [[128], BIG], ["c10::BFloat16", "c10::BFloat16"]),
]


def test_a_norm_is_one_chain_and_its_links_are_the_saving():
    (chain,) = forward_chains(trace_of(NORM))
    big, row = 64 * 128, 64
    assert chain.names == ("rsqrt", "mul", "copy_", "mul")
    assert chain.eager_bytes == 4 * (row + row) + 4 * (2 * big + row) + (4 + 2) * big + 2 * (128 + 2 * big)
    assert chain.eager_bytes - chain.fused_bytes == 2 * (4 * row + 4 * big + 2 * big)
    assert chain.saved_ns == round(40_000 * (1 - chain.fused_bytes / chain.eager_bytes))


@pytest.mark.parametrize(
    "ops",
    [
        [("aten::mul", [BIG], ["float"]), ("aten::mul", [[64, 64]], ["float"])],
        [("aten::mul", [BIG], ["float"]), ("aten::mul", [BIG], ["c10::Half"])],
        [("aten::eq", [BIG, BIG], ["float", "float"]), ("aten::mul", [BIG], ["float"])],
        [("aten::mul", [], []), ("aten::mul", [BIG], ["float"])],
    ],
    ids=["other shape", "other dtype", "a comparison makes bool", "no shapes"],
)
def test_what_does_not_fit_is_no_chain(ops: list[Op]):
    assert forward_chains(trace_of(ops)) == ()


def test_other_kernels_streams_and_the_backward_are_no_chain():
    assert forward_chains(trace_of(NORM, kernel="reduce_kernel<512, 1>")) == ()
    assert forward_chains(trace_of(NORM[:2], streams=[7, 9])) == ()
    assert forward_chains(trace_of(NORM, around="autograd::engine::evaluate_function: MulBackward0")) == ()
    assert forward_chains(trace_of(NORM, around="Optimizer.step#AdamW.step")) == ()


def test_between_two_layout_copies_nothing_is_saved():
    copies: list[Op] = [("aten::copy_", [BIG, BIG], ["float", "float"])] * 2
    (chain,) = forward_chains(trace_of(copies))
    assert chain.fused_bytes == chain.eager_bytes
    assert chain.saved_ns == 0
