"""Modelled time of planned kernels and of eager ops on the target of a plan. Nothing here is measured.

A kernel takes as long as measured kernels of its category (`predict/efficiency.py`). Without measurements it takes
``max(FLOPs / peak, bytes / bandwidth)``, but no less than the shortest kernel: at the peaks for the low end, at assumed
shares of them for the high end (`predict/assumptions.py`, with sources). A step takes the sum of its kernels, or of the
host's launches if that is longer, and the time it waits for other processes (`plans/collectives.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Device, Roof, Sizes, Target, kernel_roof, product_sizes, roofline
from perfscope.analyzers.graph import Flow, flow_of, short_name
from perfscope.analyzers.ops import flow_bytes, op_category
from perfscope.analyzers.plans.collectives import StepExchanges, planned_collectives, step_exchanges
from perfscope.analyzers.predict import NO_TIME, Category, Factors, Range, between, factors_for, ns_range, usual_range
from perfscope.analyzers.predict import Work as KernelWork
from perfscope.model.documents.torch_plan import PlannedCollective
from perfscope.model.op_graph import GraphOp, OpGraph
from perfscope.model.torch_plan import LoadedPlan, PlannedGraph, PlannedKernel
from perfscope.model.trace import Trace

EXCHANGES = ("c10d.", "_c10d_functional.", "_c10d_functional_autograd.", "_dtensor.")
"""Ops that exchange data with other processes, or wait for that."""


class Work(Struct, frozen=True, kw_only=True):
    """A sequence of kernels: exact counts, modelled time."""

    launches: int = 0
    bytes: int = 0
    flops: int = 0
    device: Range = NO_TIME
    """Sum of the kernels' times."""
    step: Range = NO_TIME
    """The same, or the host's launches if these take longer; for a whole step including waits for collectives."""
    unknown: int = 0
    """Kernels with unknown arithmetic, which are costed by bytes only."""


class GraphWork(Struct, frozen=True, kw_only=True):
    """A planned graph."""

    graph: PlannedGraph
    kernels: tuple[Range, ...]
    """One run of each kernel."""
    once: Work
    """One run of the graph."""


class StepParts(Struct, frozen=True, kw_only=True):
    """The pieces of one rank's step."""

    kernels: tuple[Range, ...]
    alone: Range
    """The step without waits for other ranks."""
    placed: tuple[PlannedCollective, ...]
    """Its collectives; their positions count the kernels."""


class PlanWork(Struct, frozen=True, kw_only=True):
    """One step of a plan."""

    held: LoadedPlan
    graphs: tuple[GraphWork, ...]
    inside: Work
    """All graphs, as often as a step runs them."""
    outside: Work | None
    """Ops of the step outside of graphs; ``None``: not recorded."""
    compiled: Work | None
    """The sum of both."""
    eager: Work | None
    """The same step without torch.compile."""
    compiled_exchanges: StepExchanges | None = None
    """Collectives of the compiled step; ``None``: a single process, or no complete compiled step was planned."""
    eager_exchanges: StepExchanges | None = None
    """Collectives of the eager step."""
    compiled_parts: StepParts | None = None
    eager_parts: StepParts | None = None

    @property
    def parts_as_run(self) -> StepParts | None:
        """The pieces of the step as the program runs it."""
        return self.compiled_parts if self.held.plan.compiled_by == "program" else self.eager_parts

    @property
    def as_run(self) -> Work:
        """The step as the program runs it; its graphs only if other ops were not recorded."""
        whole = self.compiled if self.held.plan.compiled_by == "program" else self.eager
        return whole or self.inside


def plan_works(trace: Trace) -> tuple[PlanWork, ...]:
    """One per plan of a trace; empty if the target is unknown."""
    target = trace.target
    return () if target is None else tuple(_plan_work(plan, target) for plan in trace.torch_plans)


def op_bytes(graph: OpGraph, flow: Flow, index: int) -> int:
    """Bytes that an op of a graph reads and writes."""
    return flow_bytes(graph, flow, index)


def bytes_ns(target: Target, moved: int) -> int:
    """Time to move that many bytes at the target's memory bandwidth, whole ns."""
    return round(roofline.bytes_ns(target.device, moved))


def shortest_ns(target: Target) -> int:
    """Shortest time of a kernel on the target."""
    return factors_for(target).kernel[0]


def kernel_range(device: Device, factors: Factors, work: KernelWork) -> Range:
    """One run of a kernel: from measured kernels of its category, else from the peaks to assumed shares of them.

    FLOPs count if the device has a known peak for the dtype.
    """
    usual = usual_range(device, work)
    if usual is not None:
        return usual
    low = kernel_roof(device, flops=work.flops or None, dtype=work.dtype, precision="highest", moved=work.bytes)
    reached = factors.memory if work.category == "elementwise" else factors.strided
    high = Roof(compute_ns=(low.compute_ns or 0.0) / factors.matrix, memory_ns=low.memory_ns / reached)
    return between(low, high, factors.kernel)


def _plan_work(loaded: LoadedPlan, target: Target) -> PlanWork:
    factors = factors_for(target)
    graphs = tuple(_graph_work(graph, target.device, factors) for graph in loaded.plan.graphs)
    inside = together((graph.once, graph.graph.calls) for graph in graphs)
    inside = _stepped(inside, factors)
    outside = None if loaded.outside is None else graph_work(loaded.outside, target, loaded.plan.float32_products)
    eager = None if loaded.eager is None else graph_work(loaded.eager, target, loaded.plan.float32_products)
    compiled = None if outside is None else _stepped(together([(inside, 1), (outside, 1)]), factors)
    at_once = None if eager is None else _eager_parts(loaded, eager, target)
    in_plan = None if compiled is None else _planned_parts(loaded, compiled, graphs, target)
    priced = [None if parts is None else _exchanges(loaded, parts, target) for parts in (in_plan, at_once)]
    return PlanWork(
        held=loaded,
        graphs=graphs,
        inside=inside,
        outside=outside,
        compiled=compiled if compiled is None or priced[0] is None else replace(compiled, step=priced[0].step),
        eager=eager if eager is None or priced[1] is None else replace(eager, step=priced[1].step),
        compiled_exchanges=priced[0],
        eager_exchanges=priced[1],
        compiled_parts=in_plan,
        eager_parts=at_once,
    )


def _eager_parts(loaded: LoadedPlan, alone: Work, target: Target) -> StepParts | None:
    processes = loaded.plan.processes
    if processes is None or processes.eager is None or loaded.eager is None:
        return None
    kernels = op_ranges(loaded.eager, target, loaded.plan.float32_products)
    return StepParts(kernels=kernels, alone=alone.step, placed=processes.eager)


def _planned_parts(loaded: LoadedPlan, alone: Work, graphs: tuple[GraphWork, ...], target: Target) -> StepParts | None:
    processes = loaded.plan.processes
    if processes is None or processes.outside is None or loaded.outside is None:
        return None
    outside = op_ranges(loaded.outside, target, loaded.plan.float32_products)
    kernels, placed = planned_collectives(processes, outside, [graph.kernels for graph in graphs])
    return StepParts(kernels=kernels, alone=alone.step, placed=placed)


def _exchanges(loaded: LoadedPlan, parts: StepParts, target: Target) -> StepExchanges:
    groups = () if loaded.plan.processes is None else loaded.plan.processes.groups
    return step_exchanges(parts.kernels, parts.alone, parts.placed, groups, target, factors_for(target))


def _graph_work(graph: PlannedGraph, device: Device, factors: Factors) -> GraphWork:
    ranges = tuple(_planned(kernel, device, factors) for kernel in graph.kernels)
    once = Work(
        launches=sum(kernel.kind != "collective" for kernel in graph.kernels),
        bytes=sum(kernel.bytes for kernel in graph.kernels),
        flops=sum(kernel.flops or 0 for kernel in graph.kernels),
        device=sum(ranges, NO_TIME),
        unknown=sum(kernel.kind in ("product", "attention") and kernel.flops is None for kernel in graph.kernels),
    )
    return GraphWork(graph=graph, kernels=ranges, once=_stepped(once, factors))


def _planned(kernel: PlannedKernel, device: Device, factors: Factors) -> Range:
    if kernel.kind == "collective":  # its time is the time of the links
        return NO_TIME
    once = kernel_range(device, factors, _work(kernel))
    if not kernel.reread_bytes:
        return once
    again = roofline.bytes_ns(device, kernel.reread_bytes) / factors.strided
    return ns_range(once.low, once.high + again)


def _work(kernel: PlannedKernel) -> KernelWork:
    backward = any("backward" in op for op in kernel.ops)
    category: Category = "elementwise"
    if kernel.kind == "product":
        category = "convolution" if any("conv" in op for op in kernel.ops) else "product"
    elif kernel.kind == "attention":
        category = "attention"
    elif kernel.kind == "reduction":
        category = "reduction"
    elif kernel.kind == "extern":
        category = "strided"
    if backward and category == "convolution":
        category = "convolution backward"
    elif backward and category == "attention":
        category = "attention backward"
    return KernelWork(
        category=category,
        bytes=kernel.bytes,
        flops=kernel.flops or 0,
        dtype=kernel.dtype or "",
        sizes=_written_sizes(kernel.shape) if category == "product" else None,
    )


def _written_sizes(shape: str | None) -> Sizes | None:
    """``8x8192x2048x6144`` -> 8 products of 8192 rows, 6144 columns and inner length 2048."""
    parts = (shape or "").split("x")
    if not 3 <= len(parts) <= 4 or not all(part.isdecimal() for part in parts):
        return None
    *batch, rows, inner, columns = map(int, parts)
    return Sizes(batch=batch[0] if batch else 1, rows=rows, columns=columns, inner=inner)


def _category(op: GraphOp) -> Category:
    """Category of a graph op, as for an op that ran, but without kernel names."""
    if op.flops:
        return op_category(
            op.name, "attention" if "attention" in op.name else "convolution" if "conv" in op.name else "product"
        )
    category = op_category(op.name, "memory")
    if category != "elementwise" or op.pointwise:
        return category
    return "reduction" if op.reduction else "strided"


def _sizes(graph: OpGraph, op: GraphOp) -> Sizes | None:
    """Sizes of a product from the shapes of its last two operands, of attention from the first two."""
    shapes = [graph.tensors[index].shape for index in op.inputs]
    if not op.flops or "conv" in op.name or len(shapes) < 2 or not op.name.startswith("aten."):
        return None
    if "attention" in op.name:
        queries, keys = shapes[:2]
        if len(queries) != 4 or len(keys) != 4 or "backward" in op.name:
            return None
        return Sizes(batch=queries[0] * queries[1], rows=queries[2], columns=keys[2], inner=queries[3])
    return product_sizes(shapes[-2], shapes[-1])


def launches(op: GraphOp) -> bool:
    """Whether an op of a step launches a kernel.

    Views, step counters (torch.optim keeps them on the host) and exchanges with other processes do not.
    """
    if op.view or op.name.startswith(EXCHANGES):
        return False
    return not (op.phase == "optimizer" and short_name(op) == "_local_scalar_dense")


def graph_work(graph: OpGraph, target: Target, float32_products: str) -> Work:
    """The ops of a graph as kernels launched one by one. Views and allocations launch nothing."""
    flow = flow_of(graph)
    launched = [index for index, op in enumerate(graph.ops) if launches(op)]
    whole = Work(
        launches=len(launched),
        bytes=sum(op_bytes(graph, flow, index) for index in launched),
        flops=sum(graph.ops[index].flops or 0 for index in launched),
        device=sum(op_ranges(graph, target, float32_products), NO_TIME),
    )
    return _stepped(whole, factors_for(target))


def op_ranges(graph: OpGraph, target: Target, float32_products: str) -> tuple[Range, ...]:
    """The time of each op of a graph; `NO_TIME` for ops that launch nothing."""
    factors, flow = factors_for(target), flow_of(graph)
    return tuple(
        kernel_range(
            target.device,
            factors,
            KernelWork(
                category=_category(op),
                bytes=op_bytes(graph, flow, index),
                flops=op.flops or 0,
                dtype=_dtype(graph, op, float32_products),
                sizes=_sizes(graph, op),
            ),
        )
        if launches(op)
        else NO_TIME
        for index, op in enumerate(graph.ops)
    )


def _dtype(graph: OpGraph, op: GraphOp, float32_products: str) -> str:
    """Dtype in which a product is computed; for other ops the dtype of the first operand, as for ops that ran."""
    if op.declared_dtype:
        return op.declared_dtype
    if op.flops or not op.inputs:
        return product_dtype(graph, op, float32_products) or ""
    return graph.tensors[op.inputs[0]].dtype


def product_dtype(graph: OpGraph, op: GraphOp, float32_products: str) -> str | None:
    """Dtype in which a product is computed: that of its last operand; float32 as the program sets it.

    For attention the dtype of its first operand (queries, or their gradient), because the last may hold float32 sums.
    """
    if not op.inputs:
        return None
    if "_scaled_dot_product" in op.name:
        return graph.tensors[op.inputs[0]].dtype
    dtype = graph.tensors[op.inputs[-1]].dtype
    return float32_products if dtype == "float32" else dtype


def together(parts: Iterable[tuple[Work, int]]) -> Work:
    """The sum of several, each with its number of repetitions."""
    whole = Work()
    for work, times in parts:
        whole = Work(
            launches=whole.launches + times * work.launches,
            bytes=whole.bytes + times * work.bytes,
            flops=whole.flops + times * work.flops,
            device=whole.device + work.device.times(times),
            unknown=whole.unknown + times * work.unknown,
        )
    return whole


def _stepped(work: Work, factors: Factors) -> Work:
    gaps = factors.gap[1] * work.launches
    host = Range(low=factors.host[0] * work.launches, high=factors.host[1] * work.launches)
    device = work.device
    step = Range(low=max(device.low, host.low), high=max(device.high + gaps, host.high))
    return replace(work, step=step)
