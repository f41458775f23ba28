"""Achieved rates of kernels relative to the device's peaks: FLOPs and bytes of the ops they run, per kernel, and MFU.

The cost of an op is known from the op graph of the run, else from recorded shapes (``eager_cost``), also those of a
run's detail pass. A kernel belongs to the innermost op that launched it and has a cost. Several kernels of one op
divide its cost by their times; kernels that only prepare or sum a product have no cost. Collectives count the bytes
that cross the links (bus bandwidth of nccl-tests). Kernels of compiled XLA programs have the cost of their
instruction. Costs and roofs are modelled, times are measured.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import (
    DEVICES,
    NS,
    Device,
    Roof,
    bytes_ns,
    find_device,
    kernel_roof,
    link_ns,
    peak_flops,
)
from perfscope.analyzers.graph import trace_flow
from perfscope.analyzers.ops.eager_cost import op_cost
from perfscope.analyzers.ops.fusion import graph_cost, is_elementwise_kernel
from perfscope.analyzers.ops.graph_time import graph_time
from perfscope.analyzers.ops.kernel_names import short_kernel_name
from perfscope.analyzers.ops.kernels import matmul_precision
from perfscope.analyzers.ops.op_call import CostKind, OpCost
from perfscope.analyzers.ops.recompute import recomputed_ops
from perfscope.analyzers.spans import nearest_ancestor, slice_name, work_inside
from perfscope.analyzers.time import detail_row
from perfscope.model.collectives import algorithm_of, bus_bytes, element_size, message_elements, operation_of
from perfscope.model.intervals import Int64
from perfscope.model.kernel_cost import TRITON, declared_kernel
from perfscope.model.trace import MISSING, CopyKind, SliceKind, Trace

if TYPE_CHECKING:
    from perfscope.analyzers.hlo import InstructionTime

Floats = npt.NDArray[np.float64]

MOST_ABOVE = 6
"""Number of enclosing ops in which a cost is searched: attention and convolutions launch from ops of their backends, a
few levels down.
"""


class Achieved(Struct, frozen=True, kw_only=True):
    """Work with known cost. FLOPs and bytes are modelled, times measured."""

    flops: float = 0.0
    """FLOPs of matrix products."""
    bytes: float = 0.0
    """Bytes through device memory; for collectives, over the links."""
    time_ns: int = 0
    """Time of that work."""
    roof_ns: float = 0.0
    """Shortest possible time of the part with known peaks."""
    roofed_ns: int = 0
    """Measured time of that part."""

    def __add__(self, other: Achieved) -> Achieved:
        return Achieved(
            flops=self.flops + other.flops,
            bytes=self.bytes + other.bytes,
            time_ns=self.time_ns + other.time_ns,
            roof_ns=self.roof_ns + other.roof_ns,
            roofed_ns=self.roofed_ns + other.roofed_ns,
        )

    @property
    def flops_per_s(self) -> float | None:
        """None without matrix products."""
        return self.flops * NS / self.time_ns if self.flops and self.time_ns else None

    @property
    def bytes_per_s(self) -> float | None:
        """None if unknown."""
        return self.bytes * NS / self.time_ns if self.bytes and self.time_ns else None

    @property
    def roofline_share(self) -> float | None:
        """Shortest possible time over measured time; above 1 if a cache helped. None without known peaks."""
        return self.roof_ns / self.roofed_ns if self.roof_ns and self.roofed_ns else None


NOTHING = Achieved()


class Costs(Struct, frozen=True, kw_only=True):
    """Costs by row of a table of device work. NaN: unknown."""

    flops: Floats
    bytes: Floats
    roof_ns: Floats
    repeats: npt.NDArray[np.bool_]
    """Whether its op repeats work of the forward pass (activation checkpointing)."""

    def part(self, row: int, time_ns: int, whole_ns: int) -> Achieved:
        """Return the achieved work of a row of which ``time_ns`` of ``whole_ns`` counts."""
        if np.isnan(self.bytes[row]) or not whole_ns:
            return NOTHING
        share, roofed = time_ns / whole_ns, not np.isnan(self.roof_ns[row])
        return Achieved(
            flops=share * float(self.flops[row]),
            bytes=share * float(self.bytes[row]),
            time_ns=time_ns,
            roof_ns=share * float(self.roof_ns[row]) if roofed else 0.0,
            roofed_ns=time_ns if roofed else 0,
        )


def device_peaks(trace: Trace) -> tuple[Device | None, ...]:
    """Return the catalogue entry of each row of ``devices``."""
    return tuple(find_device(trace.text(int(code))) for code in trace.rows["devices"]["name"])


def kernel_costs(trace: Trace) -> Costs:
    """Return the cost of every row of ``kernels``."""
    kernels = trace.rows["kernels"]
    costs = _unknown(len(kernels))
    devices, again = trace.fact(device_peaks), _repeated(trace)
    calls = trace.fact(costed_calls)
    rows = np.array([row for _, members in calls.values() for row in members], np.int64)
    call = np.repeat(np.arange(len(calls)), [len(members) for _, members in calls.values()])
    length, names = (kernels["end_ns"] - kernels["start_ns"])[rows], kernels["name"][rows]
    weight = np.where(_main_kernels(trace, names, call, [cost.kind for cost, _ in calls.values()]), length, 0)
    sums = np.zeros(len(calls), np.int64)
    np.add.at(sums, call, weight)
    counts = sums[call] > 0
    rows, call = rows[counts], call[counts]
    share = weight[counts] / sums[call]
    each = [cost for cost, _ in calls.values()]
    roofs = _roofs(trace, calls, devices)
    costs.flops[rows] = share * np.array([cost.flops for cost in each], np.float64)[call]
    costs.bytes[rows] = share * np.array([cost.bytes for cost in each], np.float64)[call]
    costs.roof_ns[rows] = share * roofs[call]
    costs.repeats[rows] = again[np.array([owner for owner, _ in calls], np.int64)[call]]
    _add_collectives(trace, costs, devices)
    if trace.hlo:
        _add_instructions(trace, costs, devices)
    _add_declared(trace, costs, devices)
    return costs


def _roofs(
    trace: Trace, calls: Mapping[tuple[int, int], tuple[OpCost, list[int]]], devices: Sequence[Device | None]
) -> Floats:
    """Return the shortest time of each call, ns; NaN for an unknown peak. Equal calls are computed once."""
    names = trace.rows["kernels"]["name"]
    known: dict[tuple[int, int, frozenset[int]], float] = {}
    roofs = np.empty(len(calls))
    for index, ((_, device), (cost, rows)) in enumerate(calls.items()):
        codes = frozenset(names[rows].tolist()) if cost.dtype == "float32" else frozenset()
        key = (device, id(cost), codes)  # the costs live as long as the calls
        if key not in known:
            known[key] = _roof_ns(devices[device], cost, [trace.text(code) for code in codes])
        roofs[index] = known[key]
    return roofs


def copy_costs(trace: Trace) -> Costs:
    """Return the cost of every row of ``copies``: a copy inside a device reads and writes, others cross a link once."""
    copies = trace.rows["copies"]
    costs, devices = _unknown(len(copies)), trace.fact(device_peaks)
    rows = np.flatnonzero(copies["bytes"] > 0)
    inside = copies["kind"][rows] == CopyKind.DEVICE_TO_DEVICE
    moved = copies["bytes"][rows].astype(np.float64) * np.where(inside, 2, 1)
    costs.flops[rows], costs.bytes[rows] = 0.0, moved
    local = inside | (copies["kind"][rows] == CopyKind.MEMSET)
    for number, device in enumerate(devices):
        mine = local & (copies["device"][rows] == number)
        if device is not None and mine.any():
            costs.roof_ns[rows[mine]] = moved[mine] * NS / device.memory_bandwidth
    return costs


def costs_in(trace: Trace, rows: Iterable[int], known: Mapping[int, OpCost]) -> dict[int, OpCost]:
    """Return the costs of rows of ``slices``: those that are known, or without any those by recorded shapes."""
    if known:
        return {row: known[row] for row in rows if row in known}
    shapes = _Shapes(trace)
    return {row: cost for row in rows if (cost := shapes.cost(row, ())) is not None}


def slice_costs(trace: Trace) -> dict[int, OpCost]:
    """Return the costs of ops found in the run's op graph, by row of ``slices``; empty without one."""
    graph, flow = trace.op_graph, trace.fact(trace_flow)
    if graph is None or flow is None:
        return {}
    result: dict[int, OpCost] = {}
    known: dict[int, OpCost | None] = {}
    for spans in trace.fact(graph_time).spans:
        for index in np.flatnonzero(spans != MISSING).tolist():
            if index not in known:
                known[index] = graph_cost(graph, flow, index)
            if (cost := known[index]) is not None:
                result[int(spans[index])] = cost
    return result


def launch_costs(trace: Trace) -> dict[str, OpCost]:
    """Return the mean cost of the launches of each kernel outside of any op, from the run's op graph."""
    graph, flow = trace.op_graph, trace.fact(trace_flow)
    found: dict[str, list[OpCost]] = defaultdict(list)
    for index, op in enumerate(() if graph is None else graph.ops):
        if op.name.startswith(TRITON) and graph is not None and flow is not None:
            cost = graph_cost(graph, flow, index)
            if cost is not None:
                found[op.name.removeprefix(TRITON)].append(cost)
    return {
        name: replace(
            costs[0],
            flops=sum(cost.flops for cost in costs) // len(costs),
            bytes=sum(cost.bytes for cost in costs) // len(costs),
        )
        for name, costs in found.items()
    }


class Utilization(Struct, frozen=True, kw_only=True):
    """Share of a device's peak that the matrix products of a step reached. Modelled FLOPs over measured time."""

    device: str
    dtype: str
    """dtype of the peak: bfloat16, or float16 if the device has no such unit."""
    peak_flops: float
    """FLOP/s, dense."""
    flops: float
    """FLOPs of all steps, without repetition by activation checkpointing."""
    repeated_flops: float
    """FLOPs that ran again."""
    time_ns: int
    """Time of all steps, times the number of devices."""
    compute_ns: int
    """Time of the kernels in them, except communication."""
    costed_ns: int
    """Part of that time with known cost."""

    @property
    def costed_share(self) -> float:
        """Share of the compute kernels' time with known cost; below 1, the FLOPs are a lower bound."""
        return self.costed_ns / self.compute_ns if self.compute_ns else 0.0

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization (Chowdhery et al. 2022, appendix B), relative to one peak for all dtypes."""
        return self.flops * NS / (self.time_ns * self.peak_flops)

    @property
    def hfu(self) -> float:
        """The same, including repeated work."""
        return (self.flops + self.repeated_flops) * NS / (self.time_ns * self.peak_flops)

    def __add__(self, other: Utilization) -> Utilization:
        """Return the sum of both; ``ValueError`` for different peaks."""
        if (self.device, self.dtype) != (other.device, other.dtype):
            raise ValueError(f"{self.device} and {other.device}: two peaks")
        return replace(
            self,
            flops=self.flops + other.flops,
            repeated_flops=self.repeated_flops + other.repeated_flops,
            time_ns=self.time_ns + other.time_ns,
            compute_ns=self.compute_ns + other.compute_ns,
            costed_ns=self.costed_ns + other.costed_ns,
        )


def utilization(trace: Trace, inside_ns: npt.NDArray[np.int64], window_ns: int) -> Utilization | None:
    """Return the utilization of steps of ``window_ns`` in total.

    ``inside_ns``: time of each row of ``kernels`` in them.

    ``None`` without products, and for devices of several kinds or without a peak.
    """
    kernels, costs = trace.rows["kernels"], trace.fact(kernel_costs)
    length = np.maximum(kernels["end_ns"] - kernels["start_ns"], 1)
    flops = np.nan_to_num(costs.flops) * inside_ns / length
    used = np.unique(kernels["device"][inside_ns > 0])
    devices = [trace.fact(device_peaks)[row] for row in used.tolist()]
    device = devices[0] if devices and all(other is devices[0] for other in devices) else None
    if device is None or not flops.sum() or window_ns <= 0:
        return None
    dtype = "bfloat16" if "bfloat16" in device.peak_flops else "float16"
    peak = peak_flops(device, dtype)
    if peak is None:
        return None
    again = float(flops[costs.repeats].sum())
    computes = ~kernels["communication"]
    return Utilization(
        device=device.name,
        dtype=dtype,
        peak_flops=peak,
        flops=float(flops.sum()) - again,
        repeated_flops=again,
        time_ns=window_ns * len(used),
        compute_ns=int(inside_ns[computes].sum()),
        costed_ns=int(inside_ns[computes & ~np.isnan(costs.flops)].sum()),
    )


_HELPER = re.compile(
    r"transpose|SubTensorOp|split_?k_?reduce|reduce_kernel|im(?:\dd)?2col|col2im|cast|convert|fill|memset|copy_kernel|"
    r"precompute",
    re.IGNORECASE,
)
"""Helper kernels of a product, which prepare its operands or sum its parts."""


def _main_kernels(trace: Trace, names: Int64, call: Int64, kinds: Sequence[CostKind]) -> npt.NDArray[np.bool_]:
    """Mask of the kernels that do the work of their call, without helpers of products, convolutions and attention.

    ``names``: code of each kernel's name; ``call``: its index in ``kinds``.
    """
    codes, index = np.unique(names, return_inverse=True)
    helps = np.array([_HELPER.search(trace.text(code)) is not None for code in codes.tolist()], bool)
    main = np.array([kind == "memory" for kind in kinds], bool)[call] | ~helps[index]
    any_main = np.zeros(len(kinds), bool)
    any_main[call[main]] = True
    return np.asarray(main | ~any_main[call])


def _unknown(size: int) -> Costs:
    return Costs(
        flops=np.full(size, np.nan),
        bytes=np.full(size, np.nan),
        roof_ns=np.full(size, np.nan),
        repeats=np.zeros(size, bool),
    )


def costed_calls(trace: Trace) -> dict[tuple[int, int], tuple[OpCost, list[int]]]:
    """Map (row of ``slices``, device) of a call to its cost and its kernels (rows of ``kernels``)."""
    kernels = trace.rows["kernels"]
    launched = np.flatnonzero((kernels["op"] != MISSING) & ~kernels["communication"])
    launched = launched[np.argsort(kernels["op"][launched], kind="stable")]
    sorted_ops, names, devices = kernels["op"][launched], kernels["name"][launched], kernels["device"].data
    first = np.flatnonzero(np.diff(sorted_ops, prepend=MISSING))
    first = first[np.argsort(launched[first])]  # in the order of their first kernels
    ops = sorted_ops[first]
    begins = dict(zip(ops.tolist(), first.tolist(), strict=True))
    after = dict(zip(ops.tolist(), np.searchsorted(sorted_ops, ops, side="right").tolist(), strict=True))
    calls: dict[tuple[int, int], tuple[OpCost, list[int]]] = {}
    codes, rows = names.tolist(), launched.tolist()
    costs = op_costs(trace, ops, lambda op: codes[begins[op] : after[op]])
    for op in ops.tolist():
        if op in costs:
            owner, cost = costs[op]
            for row in rows[begins[op] : after[op]]:
                calls.setdefault((owner, devices[row]), (cost, []))[1].append(row)
    return calls


def op_costs(trace: Trace, ops: Int64, kernels: Callable[[int], Sequence[int]]) -> dict[int, tuple[int, OpCost]]:
    """Map each op that launched ``kernels`` (codes of their names) to the innermost op with a cost, and that cost.

    Above the launching op, only products, convolutions and attention are considered.
    """
    slices, known, shapes = trace.rows["slices"], slice_costs(trace), _Shapes(trace)
    result: dict[int, tuple[int, OpCost]] = {}
    current = ops
    for above in range(MOST_ABOVE):
        is_op = current != MISSING
        is_op[is_op] = slices["kind"][current[is_op]] == SliceKind.OP
        ops, current = ops[is_op], current[is_op]
        open_ = np.ones(len(ops), bool)
        may = open_ if known or shapes.elsewhere else slices["shapes"][current] != MISSING
        chosen = np.flatnonzero(may)
        for index, op, owner in zip(chosen.tolist(), ops[chosen].tolist(), current[chosen].tolist(), strict=True):
            cost = known.get(owner) if known else shapes.cost(owner, kernels(op))
            if cost is not None and (known or not above or cost.kind != "memory"):
                result[op] = (owner, cost)
                open_[index] = False
        ops, current = ops[open_], slices["parent"][current[open_]]
    return result


class _Shapes:
    """Costs of ops by the shapes that the profiler recorded, in a run also by its detail pass; equal ops once."""

    def __init__(self, trace: Trace) -> None:
        detail = trace.detail
        self.elsewhere = "shapes" not in trace.recorded and detail is not None and "shapes" in detail.recorded
        """Whether the shapes are those of the detail pass."""
        self._timed = trace
        self._trace = detail if detail is not None and self.elsewhere else trace
        slices = self._trace.rows["slices"]
        self._columns = tuple(slices[name].data for name in ("name", "shapes", "dtypes", "strides", "values"))
        self._known: dict[tuple[tuple[int, ...], tuple[str, ...]], OpCost | None] = {}

    def cost(self, op: int, kernels: Iterable[int]) -> OpCost | None:
        """Return the cost of an op (row of ``slices``) that launched kernels (codes of names); ``None`` if unknown."""
        row = self._same_call(op) if self.elsewhere else op
        if row is None:
            return None
        codes = tuple(column[row] for column in self._columns)
        if codes[1] == MISSING:
            return None
        key = (codes, tuple(self._timed.text(code) for code in kernels))
        if key not in self._known:
            self._known[key] = self._priced(*key)
        return self._known[key]

    def _same_call(self, op: int) -> int | None:
        """Return the row of the detail pass with the same call of the same op."""
        row = detail_row(self._timed, op)
        names = self._columns[0]
        same = row is not None and self._trace.text(names[row]) == slice_name(self._timed, op)
        return row if same else None

    def _priced(self, codes: Sequence[int], kernels: Sequence[str]) -> OpCost | None:
        name, shapes, dtypes, strides, values = (self._trace.text(code) for code in codes)
        return op_cost(
            name, shapes, dtypes, strides, values,
            list_dtype=_list_dtype({*kernels}) if "TensorList" in dtypes else "",
            elementwise=bool(kernels) and all(map(is_elementwise_kernel, kernels)),
        )  # fmt: skip


_ELEMENT = re.compile(r"OpaqueType<(\d+)|\b(float|double|BFloat16|Half)\b")
_OF_SIZE = {"1": "int8", "2": "float16", "4": "float32", "8": "float64"}


def _list_dtype(names: Iterable[str]) -> str:
    """Return the dtype of the tensors of a list, from its kernels; a dtype of equal size if only that is known."""
    for name in sorted(names):
        if found := _ELEMENT.search(name):
            if found[1]:
                return _OF_SIZE.get(found[1], "")
            return {"float": "float32", "double": "float64", "Half": "float16"}.get(found[2], "bfloat16")
    return ""


def call_roof(device: Device, cost: OpCost, kernels: Iterable[str]) -> Roof:
    """Return the roof of one call of an op; ``kernels``: names of the kernels it launched."""
    plain = cost.dtype == "float32" and any(matmul_precision(name) == "float32" for name in kernels)
    return kernel_roof(
        device, flops=cost.flops, dtype=cost.dtype, moved=cost.bytes, precision="highest" if plain else "default"
    )


def _roof_ns(device: Device | None, cost: OpCost, kernels: Iterable[str]) -> float:
    """Return the roof, ns; NaN for an unknown peak."""
    roof = None if device is None else call_roof(device, cost, kernels)
    return np.nan if roof is None or roof.bound == "unknown" else roof.roof_ns


def _repeated(trace: Trace) -> npt.NDArray[np.bool_]:
    """Mask of the rows of ``slices`` that are, or are inside, an op that the backward pass repeats."""
    slices = trace.rows["slices"]
    roots = np.zeros(len(slices), bool)
    roots[trace.fact(recomputed_ops)] = True
    if not roots.any():
        return roots
    return np.asarray(nearest_ancestor(trace, np.arange(len(slices)), roots) != MISSING, bool)


def _add_instructions(trace: Trace, costs: Costs, devices: tuple[Device | None, ...]) -> None:
    """Add kernels of compiled XLA programs: the cost of their instruction, divided by time among several."""
    from perfscope.analyzers.hlo import hlo_costs, roof_of, run_times, scope_of

    kernels = trace.rows["kernels"]
    length = kernels["end_ns"] - kernels["start_ns"]
    for (time, device), members in _instruction_kernels(trace).items():
        rows = np.array(members)
        key = (time.computation or "", time.instruction)
        cost = trace.fact(hlo_costs)[time.module_index or 0].by_name.get(key)
        run_ns = trace.fact(run_times)[time.module_index or 0].get(key)
        if cost is None or run_ns is None or not time.mean_ns:
            continue
        kind: CostKind = "product" if cost.once.products else "memory"
        main = _main_kernels(trace, kernels["name"][rows], np.zeros(len(rows), np.int64), [kind])
        weight = np.where(main, length[rows], 0)
        if not weight.sum():
            continue
        runs = -(-len(rows) // max(1, round(run_ns / time.mean_ns)))
        share = runs * weight / weight.sum()
        costs.flops[rows] = share * sum(cost.once.products.values())
        costs.bytes[rows] = share * (cost.once.wire_bytes or cost.once.bytes)
        path = cost.instruction.op_name
        costs.repeats[rows] = bool(path) and scope_of(path).phase == "recompute"
        peaks = devices[device]
        roof = None if peaks is None else roof_of(cost, peaks)
        costs.roof_ns[rows] = np.nan if roof is None or roof.bound == "unknown" else share * roof.roof_ns


def _add_declared(trace: Trace, costs: Costs, devices: tuple[Device | None, ...]) -> None:
    """Add kernels that no op accounts for and whose author declared a cost by their name.

    Launches of a run may differ in size; each gets their mean.
    """
    kernels, launches = trace.rows["kernels"], trace.fact(launch_costs)
    unknown = np.flatnonzero(np.isnan(costs.bytes) & ~kernels["communication"])
    for code in np.unique(kernels["name"][unknown]).tolist():
        name = trace.text(code)
        known = launches.get(name)
        cost = None if known else declared_kernel(name) or declared_kernel(short_kernel_name(name))
        if cost is not None and cost.bytes is not None:
            known = OpCost(kind="memory", flops=cost.total_flops, bytes=cost.bytes, dtype=cost.dtype)
        if known is None:
            continue
        rows = unknown[kernels["name"][unknown] == code]
        costs.flops[rows], costs.bytes[rows] = known.flops, known.bytes
        roofs = [_roof_ns(device, known, ()) for device in devices]
        costs.roof_ns[rows] = np.array(roofs)[kernels["device"][rows]]


def _instruction_kernels(trace: Trace) -> dict[tuple[InstructionTime, int], list[int]]:
    """Map (instruction, device) of a scheduled program to its kernels."""
    from perfscope.analyzers.hlo import hlo_time

    ops, kernels = trace.rows["hlo_ops"], trace.rows["kernels"]
    result: dict[tuple[InstructionTime, int], list[int]] = defaultdict(list)
    times = {(row.module, row.program_id, row.instruction): row for row in trace.fact(hlo_time).instructions}
    for row in np.flatnonzero(ops["kernel"] != MISSING).tolist():
        program, kernel = int(ops["program_id"][row]), int(ops["kernel"][row])
        module, name = trace.text(int(ops["module"][row])), trace.text(int(ops["name"][row]))
        time = times.get((module, None if program == MISSING else program, name))
        if time is not None and time.module_index is not None and trace.hlo[time.module_index].is_scheduled:
            result[time, int(kernels["device"][kernel])].append(kernel)
    return result


def _add_collectives(trace: Trace, costs: Costs, devices: tuple[Device | None, ...]) -> None:
    collectives, kernels = trace.rows["collectives"], trace.rows["kernels"]
    for row in np.flatnonzero(collectives["kernel"] != MISSING).tolist():
        kernel = int(collectives["kernel"][row])
        operation = operation_of(trace.text(int(collectives["name"][row])))
        size = element_size(trace.text(int(collectives["dtype"][row])))
        ranks, ins, outs = (
            None if collectives[name][row] == MISSING else int(collectives[name][row])
            for name in ("group_size", "elements_in", "elements_out")
        )
        elements = message_elements(operation, ins, outs, ranks)
        if elements is None or size is None or ranks is None:
            continue
        algorithm, _ = algorithm_of(trace.text(int(kernels["name"][kernel])))
        sent = bus_bytes(operation, elements * size, ranks, algorithm)
        if sent is None:
            continue
        costs.flops[kernel], costs.bytes[kernel] = 0.0, sent
        device = devices[int(kernels["device"][kernel])]
        node = None if device is None else device.node
        if device is not None and node is not None and ranks <= node.devices:
            roof = Roof(compute_ns=0.0, memory_ns=0.0, link_ns=link_ns(device, sent))
            costs.roof_ns[kernel] = np.nan if roof.link_ns is None else roof.roof_ns


# Upper bound of the time of avoidable traffic and launches, which limits every modelled saving.
#
# A saving that is a share of measured time ignores why that time was long: the first call of a kernel, a slow operand
# next to the saved one, another process on the same cores. Removing bytes saves at most their time at the lowest
# bandwidth of a copy, and removing a launch at most the longest empty kernel and the gap after it.


HOST_BANDWIDTH = 2 * 10**9
"""Minimum bytes/s of an op on the host: one core of a shared machine, strided. Streaming reaches 5 to 20 GB/s."""

HOST_OP_NS = 10_000
"""Maximum overhead of an eager op on the host: dispatch, allocation, waking a thread pool."""


def longest_ns(trace: Trace, *, moved: float, launches: int) -> int:
    """Return the upper bound of the time saved with ``moved`` bytes and ``launches`` kernels (ops, on the host), ns.

    Based on the slowest device; for a device with unknown peaks, on the slowest of the catalogue.
    """
    from perfscope.analyzers.predict import vendor_factors

    if not len(trace.rows["kernels"]):
        return round(moved * NS / HOST_BANDWIDTH) + launches * HOST_OP_NS
    slowest = min(DEVICES, key=lambda device: device.memory_bandwidth)
    bounds = []
    for device in trace.fact(device_peaks):
        known = device or slowest
        factors = vendor_factors(known.vendor)
        once = factors.kernel[1] + factors.gap[1]
        bounds.append(round(bytes_ns(known, moved) / factors.strided) + launches * once)
    return max(bounds)


def moved_bytes(trace: Trace, ops: Iterable[int]) -> float | None:
    """Return the bytes moved by the work in rows of ``slices``; ``None`` if some are unknown."""
    rows = np.fromiter(ops, np.int64)
    if len(trace.rows["kernels"]):
        inside = trace.fact(kernel_costs).bytes[work_inside(trace, "kernels", rows)]
        return float(inside.sum()) if len(inside) and not np.isnan(inside).any() else None
    costs = costs_in(trace, rows.tolist(), slice_costs(trace))
    return float(sum(cost.bytes for cost in costs.values())) if costs and len(costs) == len(rows) else None
