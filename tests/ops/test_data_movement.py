"""Caches joined in every step, heads that are repeated, gradients of indices, and twins that only look like them."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from perfscope.analyzers.ops.movement import movements
from perfscope.analyzers.ops.rules.data_movement.tables import table_updates
from perfscope.model.finding import Outcome
from perfscope.model.op_graph import GraphStorage, OpGraph
from perfscope.model.trace import Trace
from tests.build import EVERYTHING, TraceBuilder, replace
from tests.graphs import GraphBuilder
from tests.rules import judged_by

ON_HOST = EVERYTHING - {"device_work", "launch_links", "runtime_calls", "waiting_calls"}

outcome = judged_by("data_movement")


def steps_of(ops: Sequence[tuple[str, float]], *, step_us: float = 1000, steps: int = 3, function: str = "decode",
             shapes: Sequence[str] = (), recorded: frozenset[str] = ON_HOST) -> TraceBuilder:  # fmt: skip
    """Steps in which ops run one after the other on the host; ``a > b`` is ``b`` inside ``a``."""
    t = TraceBuilder(recorded=recorded)
    for step in range(steps):
        at = step * step_us
        t.step(step, at, at + step_us)
        t.python(f"train.py(10): {function}", at, at + step_us)
        at += 1
        for index, (name, us) in enumerate(ops):
            names = name.split(" > ")
            for level, part in enumerate(names):
                last = level == len(names) - 1
                text = shapes[step] if shapes and last else None
                t.op(part, at + 0.001 * level, at + us - 0.001 * level, shapes=text, sequence=-1)
            at += us + 0.5 * (index >= 0)
    return t


def grown(step: int) -> str:
    """Shapes of a join of a cache of 64 positions and more with one new position."""
    return json.dumps([[[8, 4, 64 + step, 32], [8, 4, 1, 32]], []])


def test_a_cache_that_is_joined_in_each_step_is_flagged_with_its_line_and_time():
    t = steps_of(
        [("aten::cat", 300), ("aten::scaled_dot_product_attention", 200)], shapes=[grown(step) for step in range(3)]
    )
    (finding,) = outcome(t.build()).findings
    assert finding.subject == "cache join"
    assert "`cat`" in finding.title
    assert "one call per step" in finding.title
    assert (finding.where.op, finding.where.file) == ("aten::cat", "train.py")
    assert finding.cost_ns_per_step == pytest.approx(300_000, abs=10)
    assert "Allocate the cache once" in finding.advice


@pytest.mark.parametrize(("within", "kinds"), [("_c10d_functional::wait_tensor", set()), ("aten::copy_", {"join"})])
def test_a_join_of_gathered_parts_that_waits_for_them_copies_nothing(within: str, kinds: set[str]):
    ops = [("aten::mm", 100), (f"aten::cat > {within}", 300)]
    assert {item.kind for item in movements(steps_of(ops).build())} == kinds


def test_a_cache_that_is_joined_is_flagged_early_in_a_run_whose_steps_grow():
    def judged(growth_us: float) -> Outcome:
        t = steps_of(
            [("aten::cat", 30), ("aten::scaled_dot_product_attention", 500)], shapes=[grown(step) for step in range(3)]
        )
        times = [1_000 + growth_us * step for step in range(80)]
        begin = 10_000.0
        for number, time in enumerate(times, 1):
            t.run_step(number, begin, begin + time)
            begin += time
        t.step_times_us = tuple(times)
        return outcome(t.build())

    (finding,) = judged(40).findings
    assert finding.subject == "cache join"
    assert finding.cost_ns_per_step == pytest.approx(30_000, abs=10), "of the recorded steps"
    assert "Steps grow from 1.06 ms to 4.10 ms" in finding.detail
    assert judged(0).status == "clean"


def test_the_cache_is_also_known_by_the_op_graph():
    g = GraphBuilder()
    cache, new = g.input((8, 4, 64, 32)), g.input((8, 4, 1, 32))
    joined = g.op("cat", [cache, new], (8, 4, 65, 32), function="decode", file="train.py", line=12)
    g.op("_scaled_dot_product_attention", [joined], (8, 4, 1, 32), function="decode", file="train.py")
    graph = g.graph(live=[joined])
    sizes = {tensor.storage: tensor.bytes for tensor in graph.tensors}
    made = {graph.tensors[index].storage: op.index for op in graph.ops for index in op.outputs}
    storages = tuple(
        GraphStorage(bytes=sizes.get(number, 0), born=made.get(number), died=None) for number in range(max(sizes) + 1)
    )
    t = steps_of([("aten::cat", 300), ("aten::_scaled_dot_product_attention", 200)])
    t.op_graph = type(graph)(**{name: getattr(graph, name) for name in graph.__slots__} | {"storages": storages})
    (finding,) = outcome(t.build()).findings
    assert finding.subject == "cache join"
    assert (finding.where.file, finding.where.line) == ("train.py", 12)


def decoding(*, op: str, kept: bool, read_again: bool = False) -> OpGraph:
    """A step that writes a whole cache again by ``op``, which attention then reads."""
    g = GraphBuilder()
    cache, new = g.input((8, 4, 64, 32)), g.input((8, 4, 1, 32))
    copied = g.op(op, [cache, new], (8, 4, 64, 32), function="decode", file="train.py", line=12)
    read = cache if read_again else copied
    g.op("_scaled_dot_product_attention", [read], (8, 4, 1, 32), function="decode", file="train.py")
    graph = g.graph(live=[copied] if kept else [])
    made = {graph.tensors[index].storage: op.index for op in graph.ops for index in op.outputs}
    sizes = {tensor.storage: tensor.bytes for tensor in graph.tensors}
    storages = tuple(
        GraphStorage(bytes=sizes.get(number, 0), born=made.get(number), died=None) for number in range(max(sizes) + 1)
    )
    return replace(graph, storages=storages)


@pytest.mark.parametrize(
    ("op", "kept", "read_again", "subject"),
    [
        ("where", True, False, "cache copy"),
        ("index_copy", True, False, "cache copy"),
        ("index_select", True, False, "row pick"),
        ("where", False, False, None),  # a masked copy that only this step reads
        ("where", True, True, None),  # the old cache is still read
        ("mul", True, False, None),  # a new state in each step
    ],
)
def test_a_cache_that_is_written_again_as_a_whole(op: str, kept: bool, read_again: bool, subject: str | None):
    t = steps_of([(f"aten::{op}", 150), ("aten::_scaled_dot_product_attention", 200)])
    t.op_graph = decoding(op=op, kept=kept, read_again=read_again)
    findings = outcome(t.build()).findings
    assert [finding.subject for finding in findings] == ([] if subject is None else [subject])
    for finding in findings:
        assert (finding.where.file, finding.where.line) == ("train.py", 12)
        assert finding.cost_ns_per_step == 150_000


@pytest.mark.parametrize(
    ("written", "us", "status"), [(True, 150, "flagged"), (True, 99, "clean"), (False, 150, "clean")]
)
def test_pages_of_a_cache_that_are_joined_for_attention(written: bool, us: float, status: str):
    g = GraphBuilder()
    pages, table, new = g.input((16, 4, 64, 32)), g.input((8, 2), "int64"), g.input((8, 4, 1, 32))
    if written:  # otherwise it is a table of data
        g.op("index_put_", [pages, table, new])
    joined = g.op("index", [pages, table], (8, 2, 4, 64, 32), function="decode", file="train.py", line=12)
    g.op("_scaled_dot_product_attention", [new, joined], (8, 4, 1, 32), function="decode", file="train.py")
    graph = g.graph(live=[pages])
    made = {graph.tensors[index].storage: op.index for op in graph.ops for index in op.outputs if not op.mutated}
    storages = tuple(GraphStorage(bytes=8, born=made.get(number), died=None) for number in range(6))
    t = steps_of([("aten::index_put_", 10), ("aten::index", us), ("aten::_scaled_dot_product_attention", 200)])
    t.op_graph = replace(graph, storages=storages)
    if not written:
        t = steps_of([("aten::index", us), ("aten::_scaled_dot_product_attention", 200)])
        t.op_graph = replace(graph, storages=storages)
    found = outcome(t.build())
    assert (found.status, [finding.subject for finding in found.findings]) == (
        status, ["page gather"] if status == "flagged" else [],
    )  # fmt: skip


@pytest.mark.parametrize(("us", "status"), [(99, "clean"), (101, "flagged")])
def test_just_below_the_threshold_is_clean(us: float, status: str):
    t = steps_of([("aten::repeat_interleave > aten::copy_", us), ("aten::mm", 500)])
    assert outcome(t.build()).status == status


@pytest.mark.parametrize(("us", "status"), [(190, "clean"), (210, "flagged")])
def test_a_join_of_two_features_is_flagged_only_where_it_takes_a_fifth(us: float, status: str):
    found = outcome(steps_of([("aten::cat", us), ("aten::mm", 500)]).build())
    assert found.status == status
    assert not any("cache" in finding.title for finding in found.findings)


def test_the_gradient_of_an_index_in_a_loop_names_the_node():
    node = "autograd::engine::evaluate_function: SelectBackward0 > SelectBackward0 > aten::select_backward"
    t = steps_of([(f"{node} > aten::zeros > aten::fill_", 30)] * 10 + [("aten::mm", 300)])
    (finding,) = outcome(t.build()).findings
    assert finding.subject == "index gradient"
    assert "`SelectBackward0`" in finding.title
    assert "unbind" in finding.advice


@pytest.mark.parametrize(
    "ops",
    [
        [("aten::mm", 900)],
        [("aten::addmm > aten::copy_", 400), ("aten::mm", 400)],
        [("aten::masked_fill > aten::clone > aten::copy_", 400), ("aten::mm", 400)],
        [("autograd::engine::evaluate_function: UnbindBackward0 > aten::stack > aten::cat", 400)],
        [("autograd::engine::evaluate_function: SelectBackward0 > aten::select_backward > aten::fill_", 400)],
        [("aten::index_select", 400), ("aten::mm", 400)],
        [("enumerate(DataLoader)#_SingleProcess.__next__ > aten::stack > aten::cat", 400)],
    ],
    ids=["products", "a copy inside a product", "the copy of masked_fill",
         "the gradient of unbind", "one index per step",
         "rows that are picked once", "a batch that the loader puts together"],
)  # fmt: skip
def test_what_only_looks_like_it_is_clean(ops: list[tuple[str, float]]):
    assert outcome(steps_of(ops, function="train").build()).status == "clean"


def test_on_a_device_the_time_is_that_of_the_kernels():
    t = TraceBuilder()
    t.step(0, 0, 1000)
    t.op("aten::cat", 10, 20, external_id=1)
    t.kernel("CatArrayBatchedCopy", 100, 500, external_id=1)
    t.op("aten::mm", 20, 30, external_id=2)
    t.kernel("gemm", 500, 900, external_id=2)
    (finding,) = outcome(t.build()).findings
    assert (finding.subject, finding.cost_ns) == ("join", 400_000)


def test_times_of_a_cause_are_those_of_its_ops():
    trace = steps_of([("aten::cat", 300), ("aten::contiguous > aten::clone > aten::copy_", 200)]).build()
    assert {item.kind: item.calls for item in trace.fact(movements)} == {"join": 3, "layout": 3}
    assert sum(item.time_ns for item in trace.fact(movements)) == pytest.approx(1_500_000, rel=0.01)
    assert all((np.diff(item.times_ns) <= 0).all() for item in trace.fact(movements))


def test_without_ops_it_abstains():
    def without(recorded: frozenset[str]) -> Trace:
        t = TraceBuilder(recorded=recorded)
        t.step(0, 0, 1000)
        t.kernel("gemm", 100, 500)
        return t.build()

    found = outcome(without(EVERYTHING - {"host_ops"}))
    assert found.status == "abstained"
    assert "ops" in (found.reason or "")


@pytest.mark.parametrize(
    ("around", "shape", "flagged"),
    [
        ("aten::mul_", None, False),
        ("aten::add_", [], False),
        ("aten::add", [512, 512], True),
        ("aten::linear", None, True),
    ],
    ids=["a factor", "a step counter", "operands of two dtypes", "autocast"],
)
def test_a_number_in_arithmetic_is_no_conversion_of_data(around: str, shape: list[int] | None, flagged: bool):
    shapes = () if shape is None else [json.dumps([shape, shape])] * 3
    ops = [(f"{around} > aten::to > aten::_to_copy > aten::copy_", 400.0)]
    found = outcome(steps_of(ops, shapes=shapes).build()).findings
    assert [finding.subject for finding in found] == (["convert"] if flagged else [])


@pytest.mark.parametrize(
    ("around", "status"),
    [
        ("train.py(9): <module> > torch/autograd/graph.py(966): _engine_run_backward", "clean"),
        ("train.py(9): <module> > model.py(40): fill", "flagged"),
    ],
)
def test_copies_of_the_backward_engine_are_not_the_programs(around: str, status: str):
    """DDP copies between its buckets and the gradients outside of every node of the backward pass."""
    timing = steps_of([("aten::mm", 300), ("aten::copy_", 400)], recorded=ON_HOST - {"python_stack"})
    detail = TraceBuilder(recorded=ON_HOST)
    for step in range(3):
        at = step * 1000
        detail.step(step, at, at + 1000)
        detail.op("aten::mm", at + 1, at + 301)
        for text in around.split(" > "):
            detail.python(text, at + 302, at + 710)
        detail.op("aten::copy_", at + 303, at + 703)
    timing.detail = detail.build()
    assert outcome(timing.build()).status == status


@pytest.mark.parametrize(("rows", "updates"), [(160, 2), (159, 0)])
def test_the_update_of_a_table_with_few_rows_in_the_batch_is_part_of_its_gradient(rows: int, updates: int) -> None:
    g = GraphBuilder()
    table, other = g.input((rows, 8), parameter=True), g.input((8, 8), parameter=True)
    out, ids = g.input((16, 8)), g.input((16,), dtype="int64")
    gradient = g.op("embedding_dense_backward", [out, ids], (rows, 8), phase="backward")
    for parameter, reads in ((table, gradient), (other, other)):
        g.op("mul_", [parameter, reads], phase="optimizer")
        g.op("addcdiv_", [parameter, reads], phase="optimizer")
    graph = g.graph()
    builder = TraceBuilder(recorded=EVERYTHING | {"op_graph"})
    builder.step(1, 0, 1000)
    for index, op in enumerate(graph.ops):
        builder.op(f"aten::{op.name.split('.')[1]}", 10 * index, 10 * index + 5)
    assert len(table_updates(replace(builder.build(), op_graph=graph))) == updates
