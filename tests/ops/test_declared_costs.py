"""Costs that authors declare: of ops with recorded shapes, of kernels by name, of ops that ran in this process."""

from __future__ import annotations

import json
import logging
import sys
import types
from typing import Any

import pytest

import perfscope
from perfscope.analyzers.ops.achieved import kernel_costs
from perfscope.analyzers.ops.host_costs import host_costs
from perfscope.analyzers.ops.top_work import top_work
from perfscope.model import kernel_cost
from perfscope.model.errors import UsageError
from perfscope.model.kernel_cost import kernel_name
from perfscope.model.trace import Trace
from tests.build import TraceBuilder
from tests.graphs import GraphBuilder

H100 = "NVIDIA H100 80GB HBM3"
BANDWIDTH, BF16_PEAK = 3352e9, 989.4e12


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cost, "_FORMULAS", {})
    monkeypatch.setattr(kernel_cost, "_FAILED", set())


def launched(op: str = "", **more: Any) -> Trace:
    """A kernel that takes 200 us, launched by an op, or outside of any."""
    b = TraceBuilder(**more)
    b.device(0, H100)
    b.step(1, 0, 1_000)
    if op:
        shapes, dtypes = json.dumps([[1024, 4096], [1024, 4096], []]), json.dumps(["c10::BFloat16"] * 2 + ["Scalar"])
        b.op(op, 1, 20, external_id=1, shapes=shapes, dtypes=dtypes)
    b.kernel("void my_kernel<float>(float*)", 100, 300, **({"external_id": 1} if op else {}))
    return b.build()


def costed_share(trace: Trace) -> float:
    top = top_work(trace)
    assert top is not None
    return top.costed_share


def test_an_op_of_another_library_is_costed_once_its_author_declares_it() -> None:
    assert costed_share(launched("my_lib::scaled_add")) == 0

    @perfscope.kernel_cost("my_lib::scaled_add")
    def _(x: Any, y: Any, scale: Any) -> perfscope.Cost:
        return perfscope.Cost(flops={"bfloat16": 4096 * 2 * x.numel()}, bytes=3 * x.nbytes)

    trace = launched("my_lib::scaled_add")
    costs = trace.fact(kernel_costs)
    elements = 1024 * 4096
    assert (costs.flops.tolist(), costs.bytes.tolist()) == ([4096 * 2 * elements], [3 * 2 * elements])
    assert costs.roof_ns[0] == pytest.approx(1e9 * max(4096 * 2 * elements / BF16_PEAK, 6 * elements / BANDWIDTH))
    assert costed_share(trace) == 1


def test_a_kernel_outside_of_any_op_is_costed_by_its_name() -> None:
    assert costed_share(launched()) == 0
    perfscope.kernel_cost("my_kernel")(lambda: perfscope.Cost(bytes=10**8))
    costs = launched().fact(kernel_costs)
    assert (costs.flops.tolist(), costs.bytes.tolist()) == ([0], [10**8])
    assert costs.roof_ns[0] == pytest.approx(1e9 * 10**8 / BANDWIDTH)
    assert costed_share(launched()) == 1


def test_a_kernel_that_a_run_launched_has_the_mean_cost_of_its_launches() -> None:
    g = GraphBuilder()
    for moved in (100, 300):
        g.op("triton.my_kernel", [g.input((4, 8))], flops=0, declared_bytes=moved)
    b = TraceBuilder(op_graph=g.graph())
    b.device(0, H100)
    b.step(1, 0, 1_000)
    b.kernel("my_kernel", 100, 300)
    assert b.build().fact(kernel_costs).bytes.tolist() == [200]


def test_a_cost_that_depends_on_arguments_is_not_used_for_a_kernel_without_them() -> None:
    perfscope.kernel_cost("my_kernel")(lambda x: x.numel())
    assert costed_share(launched()) == 0


@pytest.mark.parametrize(
    ("declared", "share"), [({}, 0), ({"flops": 7, "declared_bytes": 64, "declared_dtype": "int8"}, 1)]
)
def test_in_a_run_the_op_graph_has_what_was_declared(declared: dict[str, Any], share: float) -> None:
    g = GraphBuilder()
    g.op("my_lib.scaled_add", [g.input((4, 8))], **declared)
    graph = g.graph()
    trace = launched("my_lib::scaled_add", op_graph=graph)
    assert costed_share(trace) == share
    if declared:
        assert trace.fact(kernel_costs).bytes.tolist() == [64]


def test_on_the_host_an_op_of_several_divides_its_cost_among_them_by_time() -> None:
    g = GraphBuilder()
    g.op("my_lib.scaled_add", [g.input((4, 8))], flops=800, declared_bytes=400)
    b = TraceBuilder(recorded=frozenset({"host_ops"}), op_graph=g.graph())
    b.step(1, 0, 100)
    b.op("my_lib::scaled_add", 0, 80)
    for start in (0, 30, 50):
        b.op("aten::mul", start, start + 20)
    trace = b.build()
    costs = host_costs(trace, range(len(trace.rows["slices"])))
    assert [cost.flops for _, cost in sorted(costs.items())] == [200, 200, 200, 200]
    assert sum(cost.bytes for cost in costs.values()) == 400


def test_a_formula_that_fails_is_reported_once_and_costs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    perfscope.kernel_cost("my_lib::scaled_add")(lambda x, y, scale: x.no_such_attribute)
    with caplog.at_level(logging.WARNING):
        assert costed_share(launched("my_lib::scaled_add")) == costed_share(launched("my_lib::scaled_add")) == 0
    assert len(caplog.messages) == 1


def test_names() -> None:
    class Jitted:
        def __init__(self, fn: Any) -> None:
            self.fn = fn

    def my_kernel() -> None: ...

    assert kernel_name(Jitted(Jitted(my_kernel))) == "my_kernel"
    with pytest.raises(UsageError, match="has no name"):
        perfscope.kernel_cost(3)


@pytest.mark.torch
def test_ops_that_run_are_recorded_with_their_declared_cost(tmp_path: Any) -> None:
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import register_flop_formula

    from perfscope.analyzers.readers.op_graph import read_op_graph
    from perfscope.profiler.torch.op_graph.capture import OpGraphCapture

    def twice(x: Any) -> Any:
        return x * 2

    ours, theirs, unknown = (
        torch.library.custom_op(f"perfscope_tests::{name}", twice, mutates_args=(), schema="(Tensor x) -> Tensor")
        for name in ("a", "b", "c")
    )
    perfscope.kernel_cost(ours)(lambda x: perfscope.Cost(flops={"float64": 2 * x.numel()}, bytes=x.nbytes))
    register_flop_formula(torch.ops.perfscope_tests.b)(lambda shape, **_: 3 * shape.numel())
    capture = OpGraphCapture()
    capture.start(1)
    for op in (ours, theirs, unknown):
        op(torch.ones(4, 8))
    capture.stop()
    capture.save(tmp_path / "graph.json")
    ops = [op for op in read_op_graph(tmp_path / "graph.json").ops if op.name.startswith("perfscope_tests")]
    assert [(op.flops, op.declared_bytes, op.declared_dtype) for op in ops] == [
        (64, 128, "float64"),
        (96, None, "float32"),
        (None, None, None),
    ]


class Jitted:
    """A kernel as Triton has it."""

    def __init__(self, fn: Any, launch_metadata: Any = None) -> None:
        self.fn, self.launch_metadata, self.arg_names = fn, launch_metadata, ["x", "n"]

    def run(self, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> None:
        """Do nothing."""


@pytest.mark.torch
def test_launches_of_triton_are_recorded_outside_of_ops_and_added_up_inside(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from perfscope.analyzers.readers.op_graph import read_op_graph
    from perfscope.profiler.torch.op_graph.capture import OpGraphCapture

    monkeypatch.setitem(sys.modules, "triton.runtime.jit", types.SimpleNamespace(JITFunction=Jitted))

    def scaled(x: Any, n: Any) -> None: ...
    def stated(x: Any, n: Any) -> None: ...

    perfscope.kernel_cost(scaled)(lambda x, n: perfscope.Cost(flops=n / 1, bytes=2.0 * x.nbytes))

    def metadata(grid: Any, metadata: Any, bound: Any) -> dict[str, float]:
        return {"flops16": bound["n"] * grid[0] / 1, "bytes": 8.0}

    kernels = [Jitted(scaled), Jitted(stated, metadata)]

    def launched(x: Any) -> Any:
        for kernel in kernels:
            kernel.run(x, 5, grid=(3,), warmup=False)
        return x.clone()

    op = torch.library.custom_op("perfscope_tests::launched", launched, mutates_args=(), schema="(Tensor x) -> Tensor")
    capture = OpGraphCapture()
    capture.start(1)
    launched(torch.ones(4))
    op(torch.ones(4))
    capture.stop()
    launched(torch.ones(4))
    capture.save(tmp_path / "graph.json")
    ops = [op for op in read_op_graph(tmp_path / "graph.json").ops if op.name.startswith(("triton", "perfscope"))]
    assert [(op.name, op.flops, op.declared_bytes, op.declared_dtype) for op in ops] == [
        ("triton.scaled", 5, 32, "float32"),
        ("triton.stated", 15, 8, "bfloat16"),
        ("perfscope_tests.launched.default", 20, 40, "bfloat16"),
    ]
    assert [op.function for op in ops[:2]] == [
        "test_launches_of_triton_are_recorded_outside_of_ops_and_added_up_inside.<locals>.launched"
    ] * 2


def test_launches_of_the_autotuner_are_no_work_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from perfscope.profiler.torch.op_graph.declared import Launches

    class Kernel:
        __name__ = "kernel"

        def run(self, *arguments: Any, **named: Any) -> None: ...

    class Autotuner:
        def __init__(self) -> None:
            self.fn = Kernel()

        def _bench(self, *arguments: Any, config: int) -> float:
            self.fn.run(*arguments, BLOCK=config)
            return 1.0 / config

        def run(self, *arguments: Any) -> None:
            best = min((64, 128), key=lambda config: self._bench(*arguments, config=config))
            self.fn.run(*arguments, BLOCK=best)

    for name, kind in (("jit", "JITFunction"), ("autotuner", "Autotuner")):
        module: Any = types.ModuleType(f"triton.runtime.{name}")
        setattr(module, kind, Kernel if name == "jit" else Autotuner)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    rows: list[str] = []
    undo = Launches(lambda name, tensors, cost: rows.append(name)).watch()
    Autotuner().run()
    undo()
    assert rows == ["triton.kernel"]
