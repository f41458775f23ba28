"""Products of a planned step in float32 on a device with a faster precision for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from perfscope.analyzers.facts.graph_flow import flow_of, short_name
from perfscope.analyzers.facts.plan_time import PlanWork, op_bytes, plan_works, product_dtype, shortest_ns
from perfscope.analyzers.finding import AbstainError, Finding, Where, severity_of
from perfscope.analyzers.hardware import Device
from perfscope.analyzers.op_graph import OpGraph
from perfscope.analyzers.torch_plan import PlannedGraph
from perfscope.analyzers.trace import Trace
from perfscope.analyzers.units import format_count, format_ns, format_share

NS = 10**9

MAX_ROWS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FullProduct:
    """A product in float32, once."""

    op: str
    file: str | None
    line: int | None
    shape: str | None
    runs: int
    """In a step."""
    flops: int
    bytes: int


def full_products(work: PlanWork) -> tuple[FullProduct, ...]:
    """Of one step: of the program as it is, so of its eager ops where it compiles nothing."""
    plan = work.held.plan
    if plan.float32_products != "float32":
        return ()
    if plan.compiled_by != "program" and work.held.eager is not None:
        return tuple(_of_ops(work.held.eager))
    outside = () if work.held.outside is None else tuple(_of_ops(work.held.outside))
    return (*(one for held in work.graphs for one in _of_graph(held.graph)), *outside)


def precision_findings(trace: Trace, *, least: float, advice: Callable[[Device], str]) -> Iterator[Finding]:
    """One finding for all of a program: one setting changes them together. ``least``: share of the step."""
    for work in trace.fact(plan_works):
        found, target = full_products(work), trace.target
        if target is None or not found:
            continue
        device = target.device
        if not device.matrix_dtypes or not device.peak_flops.get("float32"):
            raise AbstainError(f"no faster precision for products is known of {device.name}")
        fast = device.matrix_dtypes[0]
        floor = shortest_ns(target)
        saved = [one.runs * (_ns(device, one, "float32", floor) - _ns(device, one, fast, floor)) for one in found]
        cost = sum(saved)
        step = (
            (work.compiled or work.inside) if work.held.plan.compiled_by == "program" else (work.eager or work.inside)
        )
        whole = step.device.low
        if not cost or cost < least * whole:
            continue
        by_place: dict[tuple[str | None, int | None], int] = defaultdict(int)
        for one, gained in zip(found, saved, strict=True):
            by_place[one.file, one.line] += gained
        file, line = max(by_place, key=lambda place: by_place[place])
        ratio = device.peak_flops[fast] / device.peak_flops["float32"]
        flops = sum(one.runs * one.flops for one in found)
        order = sorted(range(len(found)), key=lambda index: -saved[index])
        yield Finding(
            subject="float32 matrix products",
            title=f"{sum(one.runs for one in found):,} matrix products a step ({format_count(flops)}FLOPs) multiply in "
            f"float32; in {fast} (peak {ratio:.1f}x) {format_ns(cost)} less a step ({format_share(cost, whole)}) on "
            f"{device.name}",
            severity=severity_of(cost, whole),
            basis="modelled",
            cost_ns=cost,
            cost_ns_per_step=cost,
            where=Where(op=found[order[0]].op, file=file, line=line),
            evidence=tuple(
                {
                    "op": found[index].op,
                    "at": Where(file=found[index].file, line=found[index].line).label(),
                    "shape": found[index].shape,
                    "runs": found[index].runs,
                    "flops": found[index].flops,
                    "saved_ns": saved[index],
                    "peaks_from": device.source,
                }
                for index in order[:MAX_ROWS]
            ),
            advice=advice(device),
        )


def _ns(device: Device, one: FullProduct, dtype: str, floor: int) -> int:
    """Low end of its time in a precision: arithmetic at the peak, or bytes at the bandwidth, or ``floor``."""
    arithmetic = one.flops * NS / device.peak_flops[dtype]
    return round(max(arithmetic, one.bytes * NS / device.memory_bandwidth, floor))


def _of_graph(graph: PlannedGraph) -> Iterator[FullProduct]:
    for kernel in graph.kernels:
        if kernel.kind == "product" and kernel.dtype == "float32" and kernel.flops:
            place = kernel.places[0] if kernel.places else None
            yield FullProduct(
                op=kernel.name,
                file=None if place is None else place.file,
                line=None if place is None else place.line,
                shape=kernel.shape,
                runs=graph.calls,
                flops=kernel.flops,
                bytes=kernel.bytes,
            )


def _of_ops(graph: OpGraph) -> Iterator[FullProduct]:
    flow = flow_of(graph)
    for index, op in enumerate(graph.ops):
        if op.view or not op.flops or "_scaled_dot_product" in op.name:
            continue
        if product_dtype(graph, op, "float32") == "float32":
            shapes = " ".join("x".join(map(str, graph.tensors[tensor].shape)) for tensor in op.inputs[-2:])
            yield FullProduct(
                op=short_name(op),
                file=op.file,
                line=op.line,
                shape=shapes,
                runs=1,
                flops=op.flops,
                bytes=op_bytes(graph, flow, index),
            )
