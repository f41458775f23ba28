"""Products of a planned step in float32 or TF32 although the device and the rest of the program use a faster type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from perfscope.analyzers.devices import Device, kernel_roof, peak_ratio
from perfscope.analyzers.graph import flow_of, short_name
from perfscope.analyzers.plans import PlanWork, op_bytes, plan_works, product_dtype, shortest_ns
from perfscope.analyzers.time import planned_cost
from perfscope.model.finding import MOST_ROWS, AbstainError, Cell, Finding, Where
from perfscope.model.op_graph import OpGraph
from perfscope.model.torch_plan import PlannedGraph
from perfscope.model.trace import Trace
from perfscope.model.units import format_count

HALVES = ("bfloat16", "float16")


class PlannedProduct(Struct, frozen=True, kw_only=True):
    """A matrix product, listed once."""

    op: str
    dtype: str
    """dtype of the multiplication: ``float32``, ``tf32``, ``bfloat16`` ..."""
    file: str | None
    line: int | None
    shape: str | None
    runs: int
    """Runs per step."""
    flops: int
    bytes: int


def planned_products(work: PlanWork) -> tuple[PlannedProduct, ...]:
    """Return the products of one step of the program as it is, that is, of its eager ops if it compiles nothing."""
    plan = work.held.plan
    if plan.compiled_by != "program" and work.held.eager is not None:
        return tuple(_of_ops(work.held.eager, plan.float32_products))
    outside = () if work.held.outside is None else tuple(_of_ops(work.held.outside, plan.float32_products))
    return (*(product for graph in work.graphs for product in _of_graph(graph.graph)), *outside)


def mixed_precision(products: Iterable[PlannedProduct]) -> str | None:
    """Return the 16-bit dtype in which the program does most of its multiplication; ``None`` without one."""
    flops: dict[str, int] = defaultdict(int)
    for product in products:
        flops[product.dtype] += product.runs * product.flops
    most = max(HALVES, key=lambda dtype: flops[dtype])
    return most if 2 * flops[most] > sum(flops.values()) else None


def precision_findings(trace: Trace, *, least: float, advice: Callable[[Device, str | None], str]) -> Iterator[Finding]:
    """Yield one finding for all slow products of a program.

    In a program that otherwise multiplies in 16 bits, those in float32 or TF32; else those in float32, which one
    setting changes together. ``least``: share of the step; ``advice(device, dtype of the others)``.
    """
    for work in trace.fact(plan_works):
        products, target = planned_products(work), trace.target
        mixed = mixed_precision(products)
        found = tuple(
            product for product in products if product.dtype in (("float32", "tf32") if mixed else ("float32",))
        )
        if target is None or not found:
            continue
        device = target.device
        if not device.matrix_dtypes or not device.peak_flops.get("float32"):
            raise AbstainError(f"no faster precision for products is known for {device.name}")
        fast = mixed if mixed is not None and mixed in device.peak_flops else device.matrix_dtypes[0]
        floor = shortest_ns(target)
        saved = [
            product.runs * (_ns(device, product, product.dtype, floor) - _ns(device, product, fast, floor))
            for product in found
        ]
        cost = sum(saved)
        whole = work.as_run.device.low
        if cost <= 0 or cost < least * whole:
            continue
        by_place: dict[tuple[str | None, int | None], int] = defaultdict(int)
        for product, gained in zip(found, saved, strict=True):
            by_place[product.file, product.line] += gained
        file, line = max(by_place, key=lambda place: by_place[place])
        slow = max(found, key=lambda product: product.runs * product.flops).dtype
        ratio = peak_ratio(device, fast, slow)
        flops = sum(product.runs * product.flops for product in found)
        among = "" if mixed is None else f" in a program that multiplies in {mixed} otherwise"
        order = sorted(range(len(found)), key=lambda index: -saved[index])
        yield Finding(
            subject="float32 matrix products" if mixed is None else f"float32 products among {mixed} ones",
            title=f"{sum(product.runs for product in found):,} {slow} matrix products per step could run in {fast}",
            detail=f"They have {format_count(flops)}FLOPs{among}; on {device.name} {fast} has {ratio:.1f} times the "
            f"peak of {slow}.",
            **planned_cost(cost, whole),
            where=Where(op=found[order[0]].op, file=file, line=line),
            evidence=tuple(_row(found[index], saved[index], device) for index in order[:MOST_ROWS]),
            advice=advice(device, mixed),
        )


def _row(product: PlannedProduct, saved_ns: int, device: Device) -> dict[str, Cell]:
    return {
        "op": product.op,
        "at": Where(file=product.file, line=product.line).label(),
        "shape": product.shape,
        "multiplied_in": product.dtype,
        "runs": product.runs,
        "flops": product.flops,
        "saved_ns": saved_ns,
        "peaks_from": device.source,
    }


def _ns(device: Device, product: PlannedProduct, dtype: str, floor: int) -> int:
    """Return the low end of its time in a precision: arithmetic at the peak, bytes at the bandwidth, or ``floor``."""
    roof = kernel_roof(device, flops=product.flops, dtype=dtype, precision="highest", moved=product.bytes)
    return round(max(roof.roof_ns, floor))


def _of_graph(graph: PlannedGraph) -> Iterator[PlannedProduct]:
    for kernel in graph.kernels:
        if kernel.kind == "product" and kernel.dtype is not None and kernel.flops:
            plan_line = kernel.places[0] if kernel.places else None
            yield PlannedProduct(
                op=kernel.name,
                dtype=kernel.dtype,
                file=None if plan_line is None else plan_line.file,
                line=None if plan_line is None else plan_line.line,
                shape=kernel.shape,
                runs=graph.calls,
                flops=kernel.flops,
                bytes=kernel.bytes,
            )


def _of_ops(graph: OpGraph, float32_products: str) -> Iterator[PlannedProduct]:
    flow = flow_of(graph)
    for index, op in enumerate(graph.ops):
        if op.view or not op.flops or "_scaled_dot_product" in op.name:
            continue
        dtype = product_dtype(graph, op, float32_products)
        if dtype is not None:
            shapes = " ".join("x".join(map(str, graph.tensors[tensor].shape)) for tensor in op.inputs[-2:])
            yield PlannedProduct(
                op=short_name(op),
                dtype=dtype,
                file=op.file,
                line=op.line,
                shape=shapes,
                runs=1,
                flops=op.flops,
                bytes=op_bytes(graph, flow, index),
            )
