"""What a PyTorch program holds all of a step besides what the step makes, and what its allocator measured."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.facts.memory_timelines import memory_timelines
from perfscope.model.memory import MemoryTimeline
from perfscope.model.op_graph import OpGraph, storage_devices
from perfscope.model.trace import MISSING, Trace
from perfscope.model.trace.tables import MemoryCategory

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Bytes by purpose, and where they are."""

    label: str
    parameter_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    other_bytes: int
    element_bytes: int
    capacity_bytes: int | None
    device_name: str | None
    measured_peak_bytes: int | None
    reserve_share: float | None
    out_of_memory: int
    notes: tuple[str, ...]


def held_of(trace: Trace, graph: OpGraph, gradients: Collection[int]) -> Held:
    """From the program's own list of tensors where it was recorded, else from what the graph's ops touch."""
    timeline = timeline_of(trace, graph)
    notes: list[str] = []
    listed = _listed(trace, graph)
    by_name = listed is not None
    if listed is None:
        listed = _touched(graph)
        notes.append(
            "the program's tensors were not listed: parameters and optimizer state are those that the ops touch"
        )
    parameters, gradient, optimizer, kept_gradient = listed
    other = 0
    if timeline is not None:
        others, known = _before(timeline)
        other = (
            others + known - parameters - optimizer if by_name else others + known - parameters - gradient - optimizer
        )
    devices = trace.rows["devices"]
    names = [trace.text(int(code)) for code in devices["name"]]
    sizes = [int(size) for size in devices["memory_bytes"] if size > 0]
    on_host = graph.device == "cpu"
    return Held(
        label=timeline.label if timeline is not None else graph.device,
        parameter_bytes=parameters,
        gradient_bytes=kept_gradient,
        optimizer_bytes=optimizer,
        other_bytes=max(0, other),
        element_bytes=_element_bytes(graph),
        capacity_bytes=None if on_host else (timeline and timeline.capacity_bytes) or min(sizes, default=None),
        device_name=next((name for name in names if name), None),
        measured_peak_bytes=None if timeline is None else _peak_of_steps(trace, timeline),
        reserve_share=None if timeline is None else _reserve_share(timeline),
        out_of_memory=0 if timeline is None else len(timeline.out_of_memory),
        notes=tuple(notes),
    )


def _listed(trace: Trace, graph: OpGraph) -> tuple[int, int, int, int] | None:
    """Bytes of parameters, gradients, optimizer state, and of gradients that are not freed; None if not recorded."""
    source = next((one for one in (trace.detail, trace) if one is not None and len(one.rows["tensors"])), None)
    if source is None:
        return None
    rows = source.rows["tensors"]
    here = rows["on_device"] == (graph.device != "cpu")
    found = {
        category: int(rows["bytes"][here & (rows["category"] == category)].sum())
        for category in (MemoryCategory.PARAMETER, MemoryCategory.GRADIENT, MemoryCategory.OPTIMIZER_STATE)
    }
    stay = here & (rows["category"] == MemoryCategory.GRADIENT) & (rows["freed_ns"] == MISSING)
    return (*found.values(), int(rows["bytes"][stay].sum()))  # type: ignore[return-value]


def _touched(graph: OpGraph) -> tuple[int, int, int, int]:
    """The same, of what the ops of the step write in place."""
    storages, place = graph.storages or (), storage_devices(graph)
    parameters = {one for one in graph.parameters if place.get(one) == graph.device}
    written: set[int] = set()
    summed: set[int] = set()
    for op in graph.ops:
        stored = {graph.tensors[index].storage for index in op.mutated}
        held = {one for one in stored if storages[one].born is None and place.get(one) == graph.device} - parameters
        if op.phase == "optimizer":
            written |= held
        elif op.phase == "backward":
            summed |= held
    state = written - summed  # an optimizer that clears gradients writes them too
    return (
        sum(storages[one].bytes for one in parameters),
        sum(storages[one].bytes for one in summed),
        sum(storages[one].bytes for one in state),
        sum(storages[one].bytes for one in summed),
    )


def _element_bytes(graph: OpGraph) -> int:
    sizes = [
        _BYTES.get(tensor.dtype.removeprefix("torch."), 4)
        for tensor in graph.tensors
        if tensor.storage in graph.parameters
    ]
    return max(set(sizes), key=sizes.count) if sizes else 4


def timeline_of(trace: Trace, graph: OpGraph) -> MemoryTimeline | None:
    """The recorded memory that the graph's program computes in; None where no allocator was watched."""
    space = "host" if graph.device == "cpu" else "device"
    found = (one for one in trace.fact(memory_timelines) if one.space == space and not one.of_driver)
    return next(found, None)


def _before(timeline: MemoryTimeline) -> tuple[int, int]:
    """Bytes held before the recording: of neither gradients nor what is listed, and of parameters and optimizer state.

    As the allocator rounds them: what rounding adds to the latter is held as well.
    """
    blocks = timeline.blocks
    size, category = blocks["bytes"], blocks["category"]
    listed = blocks["before"] & np.isin(category, (MemoryCategory.PARAMETER, MemoryCategory.OPTIMIZER_STATE))
    others = blocks["before"] & ~listed & (category != MemoryCategory.GRADIENT)
    return timeline.unseen_bytes + int(size[others].sum()), int(size[listed].sum())


def _peak_of_steps(trace: Trace, timeline: MemoryTimeline) -> int | None:
    """The highest moment of the recorded steps, as the allocator counts."""
    steps = timeline.of(trace).rows["steps"]
    curve = timeline.live()
    if not len(steps) or timeline.axis != "ns":
        return int(curve.bytes.max()) if len(curve.bytes) else None
    first, last = int(steps["start_ns"].min()), int(steps["end_ns"].max())
    begin = max(0, int(np.searchsorted(curve.positions, first, side="right")) - 1)
    end = int(np.searchsorted(curve.positions, last, side="left"))
    return int(curve.bytes[begin:end].max()) if end > begin else None


def _reserve_share(timeline: MemoryTimeline) -> float | None:
    """What the allocator held beyond the peak, as a share of the peak; 0 on the host, which reserves nothing."""
    if timeline.space == "host":
        return 0.0
    if timeline.reserved is None or not len(timeline.reserved.bytes):
        return None
    peak = int(timeline.live().bytes.max(initial=0))
    return max(0.0, int(timeline.reserved.bytes.max()) / peak - 1.0) if peak else None
