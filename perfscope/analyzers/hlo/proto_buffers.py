"""``BufferAssignmentProto`` into the model: where buffers lie, and the heap simulator's trace of their lives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from perfscope.analyzers.hlo.module import BufferAllocation, BufferAssignment, HeapEvent, LogicalBuffer

_KINDS: tuple[Literal["alloc", "free", "share_with"], ...] = ("alloc", "free", "share_with")


def buffer_assignment_of(proto: Any, names: Mapping[int, str]) -> BufferAssignment:
    """The assignment; ``names``: instructions of the module by id, for files that refer to them by id.

    ``ValueError`` for a size that is negative or a buffer that is named twice. The allocation index that a
    heap trace carries is left out: it was written before allocations were numbered anew, and is stale.
    """
    placed: dict[int, tuple[int, int, int]] = {}
    allocations = []
    for allocation in proto.buffer_allocations:
        if allocation.size < 0:
            raise ValueError(f"allocation {allocation.index} of {allocation.size:,} bytes")
        for assigned in allocation.assigned:
            placed[assigned.logical_buffer_id] = (allocation.index, assigned.offset, assigned.size)
        allocations.append(
            BufferAllocation(
                index=allocation.index,
                size=allocation.size,
                is_parameter=allocation.is_entry_computation_parameter,
                is_constant=allocation.is_constant,
                is_thread_local=allocation.is_thread_local,
                maybe_live_out=allocation.maybe_live_out,
                memory_space=allocation.color,
                buffers=tuple(assigned.logical_buffer_id for assigned in allocation.assigned),
            )
        )
    buffers: dict[int, LogicalBuffer] = {}
    for buffer in proto.logical_buffers:
        if buffer.size < 0 or buffer.id in buffers:
            raise ValueError(f"buffer {buffer.id} of {buffer.size:,} bytes is impossible or named twice")
        place = placed.get(buffer.id)
        at = buffer.defined_at
        buffers[buffer.id] = LogicalBuffer(
            id=buffer.id,
            instruction=at.instruction_name or names.get(at.instruction_id, ""),
            size=buffer.size,
            allocation=None if place is None else place[0],
            offset=None if place is None else place[1],
            index=tuple(at.shape_index),
        )
    traces = tuple(tuple(_event(event) for event in trace.events) for trace in proto.heap_simulator_traces)
    return BufferAssignment(buffers=buffers, allocations=tuple(allocations), heap_traces=traces)


def _event(event: Any) -> HeapEvent:
    if not 0 <= event.kind < len(_KINDS):
        raise ValueError(f"a heap event of kind {event.kind}")
    kind = _KINDS[event.kind]
    return HeapEvent(
        kind=kind,
        buffer=event.buffer_id,
        instruction=event.instruction_name,
        share_with=event.share_with_canonical_id if kind == "share_with" else None,
    )
