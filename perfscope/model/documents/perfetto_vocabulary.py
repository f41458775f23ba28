"""Vocabulary of our Perfetto and Chrome exports, shared with our reader.

It uses Kineto's words where they exist, because other tools know them.
"""

from __future__ import annotations

import re
from enum import IntEnum

from perfscope.model.trace import CallKind, CopyKind, HostMemory, MemoryAction, MemoryCategory, SliceKind

SLICE_CATEGORIES: dict[SliceKind, str] = {
    SliceKind.OP: "cpu_op",
    SliceKind.ANNOTATION: "user_annotation",
    SliceKind.PYTHON: "python_function",
    SliceKind.OVERHEAD: "overhead",
    SliceKind.OTHER: "other",
}
CALL, KERNEL, COPY, MEMSET, SYNC = "cuda_runtime", "kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"
STEP, COLLECTIVE, HLO_OP, MEMORY, COUNTER = "step", "collective", "hlo_op", "memory", "counter"
FINDING = "finding"
SOURCE = "perfscope.source"
"""One instant per trace: the source as its reader described it."""
DEVICE = "perfscope.device"
"""One instant per device, in the order of the table."""
DRAWN = "perfscope.drawn"
"""Counters computed from other events of the export; drawn for viewers, not read."""

ARGUMENTS: dict[str, dict[str, str]] = {
    "slices": {
        "external_id": "External id",
        "sequence": "Sequence number",
        "forward_thread": "Fwd thread id",
        "shapes": "Input Dims",
        "dtypes": "Input type",
        "strides": "Input Strides",
        "values": "Concrete Inputs",
    },
    "calls": {"kind": "call kind", "correlation": "correlation", "external_id": "External id"},
    "kernels": {
        "stream": "stream",
        "communication": "communication",
        "correlation": "correlation",
        "external_id": "External id",
        "blocks": "blocks",
        "threads_per_block": "threads per block",
        "occupancy": "est. achieved occupancy %",
    },
    "copies": {
        "stream": "stream",
        "correlation": "correlation",
        "external_id": "External id",
        "kind": "copy kind",
        "host_memory": "host memory",
        "bytes": "bytes",
    },
    "sync_records": {"stream": "stream", "correlation": "correlation"},
    "collectives": {
        "name": "Collective name",
        "group": "Process Group Name",
        "description": "Process Group Description",
        "group_size": "Group size",
        "ranks": "Process Group Ranks",
        "elements_in": "In msg nelems",
        "elements_out": "Out msg nelems",
        "dtype": "dtype",
        "sequence": "Seq",
        "peer": "Peer Rank",
    },
    "hlo_ops": {
        "name": "hlo_op",
        "module": "hlo_module",
        "program_id": "program_id",
        "run_id": "run_id",
        "ordinal": "device_ordinal",
        "place": "hlo_place",
        "encloses": "hlo_encloses",
        "asynchronous": "hlo_asynchronous",
    },
    "memory": {
        "on_device": "on device",
        "ordinal": "Device Id",
        "address": "Addr",
        "bytes": "Bytes",
        "allocated_bytes": "Total Allocated",
        "reserved_bytes": "Total Reserved",
        "stack_bytes": "stack bytes",
        "limit_bytes": "limit bytes",
        "peak_bytes": "peak bytes",
        "fragmentation": "fragmentation",
        "action": "action",
        "requested_bytes": "requested bytes",
        "category": "memory category",
        "stream": "stream",
        "pool": "pool",
    },
    "steps": {"number": "number"},
    "devices": {"ordinal": "device", "name": "name", "cores": "cores", "memory_bytes": "memory bytes"},
}
"""Table -> column -> name of the argument (debug annotation) that carries it."""

DEVICE_ARGUMENT = "device"
"""Ordinal of the device of a kernel, copy or wait."""
HLO_DURATION = "hlo_duration_ns"
"""Duration of the instruction, if it differs from its span's."""
HLO_LAUNCH = "hlo_launch_ns"
"""Duration of the call that began the instruction (XLA's CPU backend)."""
OP_ARGUMENT = "op id"
"""Number of a host op in its trace: on the op, on the device work it launched, on its allocator events."""
THREAD_ARGUMENT = "thread"
"""Track uuid of the thread of an allocator event."""

ENUMS: dict[tuple[str, str], type[IntEnum]] = {
    ("calls", "kind"): CallKind,
    ("copies", "kind"): CopyKind,
    ("copies", "host_memory"): HostMemory,
    ("memory", "action"): MemoryAction,
    ("memory", "category"): MemoryCategory,
}
"""Columns that are written as the lower-case name of their number."""

HOST_PROCESS = re.compile(r"(?:.* · )?host (.*)$", re.DOTALL)
HOST_THREAD = re.compile(r"thread (.*)$", re.DOTALL)

SLICE_KINDS: dict[str, SliceKind] = {
    **{category: kind for kind, category in SLICE_CATEGORIES.items()},
    "operator": SliceKind.OP,
    "marker_api": SliceKind.ANNOTATION,
    "fee": SliceKind.PYTHON,  # viztracer's functions.
}
"""Category (lower case) -> kind of the slice; any other is ``OTHER``."""


def host_name(label: str, process: str) -> str:
    """Return the track name of a host process; ``label`` separates several traces of one file."""
    return f"{label}host {process}"


def device_name(label: str, ordinal: int, product: str) -> str:
    """Return the track name of a device."""
    return f"{label}device {ordinal}" + (f" ({product})" if product else "")


def thread_name(thread: str) -> str:
    """Return the track name of a host thread."""
    return f"thread {thread}"


# Table of an event, by its category.


class Place(IntEnum):
    """Table of an event."""

    SLICE = 0
    CALL = 1
    KERNEL = 2
    COPY = 3
    SYNC = 4
    STEP = 5
    COLLECTIVE = 6
    HLO_OP = 7
    MEMORY = 8
    SOURCE = 9
    DEVICE = 10
    FINDING = 11
    DRAWN = 12


PLACES: dict[str, Place] = {
    # Kineto's, in files that other tools made of its traces.
    "cuda_runtime": Place.CALL,
    "cuda_driver": Place.CALL,
    "kernel": Place.KERNEL,
    "gpu_memcpy": Place.COPY,
    "gpu_memset": Place.COPY,
    # rocprofv3's.
    "hip_api": Place.CALL,
    "hip_runtime_api": Place.CALL,
    "hsa_api": Place.CALL,
    "kernel_dispatch": Place.KERNEL,
    "memory_copy": Place.COPY,
}
"""Category (lower case) -> place, in any file. Everything else is a slice."""

OWN_PLACES: dict[str, Place] = {
    SYNC: Place.SYNC,
    STEP: Place.STEP,
    COLLECTIVE: Place.COLLECTIVE,
    HLO_OP: Place.HLO_OP,
    MEMORY: Place.MEMORY,
    SOURCE: Place.SOURCE,
    DEVICE: Place.DEVICE,
    FINDING: Place.FINDING,
    DRAWN: Place.DRAWN,
}
"""Further places in our own exports."""


def place_of(category: str, *, own: bool) -> Place:
    """Return the place of a category's events; ``own``: the file is an export of ours."""
    lowered = category.lower()
    result = PLACES.get(lowered)
    if result is None and own:
        result = OWN_PLACES.get(lowered)
    return Place.SLICE if result is None else result
