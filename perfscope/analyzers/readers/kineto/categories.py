"""Meaning of the categories and names of a Kineto trace, over all ages of the schema."""

from __future__ import annotations

import re
from enum import IntEnum

from perfscope.model.trace import CallKind, CopyKind, HostMemory, SliceKind

ASCEND_DEVICE = 0
"""Device of an Ascend trace, which has only one: its events have the viewer's process names."""

_ASCEND_KERNEL = re.compile(r"AI_|AIC|AIV|MIX_|KERNEL|DSA_SQE")

SLICE_KINDS: dict[str, SliceKind] = {
    "cpu_op": SliceKind.OP,
    "operator": SliceKind.OP,
    "user_annotation": SliceKind.ANNOTATION,
    "python_function": SliceKind.PYTHON,
    "overhead": SliceKind.OVERHEAD,
}

STEP_NAMES = (re.compile(r"perfscope\.step#(\d+)$"), re.compile(r"ProfilerStep\s?#(\d+)$"))
"""Patterns of annotations that are steps, most reliable first."""

DEVICE_MARKS = frozenset({"gpu_user_annotation", "mtia_user_annotation"})
"""Categories of host annotations that the profiler draws again around their work on each device and stream."""

NUMBERS = re.compile(rb'\[[\s,]*(?:"(?:[-+\d\s.,eE\[\]]|True|False|None|inf|nan){0,512}"[\s,]*){0,128}\]')
"""Concrete inputs of an op that may be kept: dimensions, strides, flags and factors, but no text."""

_ANNOTATION = re.compile(
    r"(?:nccl|gloo|mpi|ucc):|FSDP::|Optimizer\.|enumerate\(Data|ProfilerStep|## |DistributedDataParallel\.|"
    r"Torch-Compiled Region|TorchDynamo|perfscope\."
)

GLOO_NAME = re.compile(r"(?:gloo|mpi|ucc):(\w+)$")
"""Host collectives: c10d annotates them with the backend; group 1 is the operation."""

_MTIA_COPY = re.compile(r"dma", re.IGNORECASE)

_MTIA_WAIT = re.compile(r"event_(wait|record)")

_MTIA_DIRECTIONS = {
    "HOST_TO_DEVICE": CopyKind.HOST_TO_DEVICE,
    "DEVICE_TO_HOST": CopyKind.DEVICE_TO_HOST,
    "DEVICE_TO_DEVICE": CopyKind.DEVICE_TO_DEVICE,
}

_SYNC_CALL = re.compile(r"Synchronize|^synchronize|waitEvent$|^hipMemcpyWithStream$")

_MEMORY_CALL = re.compile(r"Malloc|Free|MemAlloc|MemCreate|MemMap|MemUnmap|MemRelease|HostRegister|HostAlloc")

_DIRECTIONS = (
    (re.compile(r"\bHtoD\b|Host\w* -> Device|CopyHostToDevice"), CopyKind.HOST_TO_DEVICE),
    (re.compile(r"\bDtoH\b|Device -> Host|CopyDeviceToHost"), CopyKind.DEVICE_TO_HOST),
    (re.compile(r"\bDtoD\b|CopyDeviceToDevice"), CopyKind.DEVICE_TO_DEVICE),
    (re.compile(r"\bPtoP\b|PeerToPeer"), CopyKind.PEER_TO_PEER),
    (re.compile(r"\bHtoH\b"), CopyKind.HOST_TO_HOST),
)


class Group(IntEnum):
    """Table of an event."""

    SLICE = 0
    CALL = 1
    KERNEL = 2
    COPY = 3
    SYNC = 4
    MTIA = 5
    MIRROR = 6


CATEGORIES: dict[str, Group] = {
    "cpu_op": Group.SLICE,
    "operator": Group.SLICE,
    "user_annotation": Group.SLICE,
    "python_function": Group.SLICE,
    "overhead": Group.SLICE,
    "cuda_runtime": Group.CALL,
    "cuda_driver": Group.CALL,
    "runtime": Group.CALL,
    "driver": Group.CALL,
    "mtia_runtime": Group.CALL,
    "privateuse1_runtime": Group.CALL,
    "privateuse1_driver": Group.CALL,
    "xpu_runtime": Group.CALL,
    "xpu_driver": Group.CALL,
    "kernel": Group.KERNEL,
    "concurrent_kernel": Group.KERNEL,
    "gpu_memcpy": Group.COPY,
    "memcpy": Group.COPY,
    "gpu_memset": Group.COPY,
    "memset": Group.COPY,
    "cuda_sync": Group.SYNC,
    "mtia_ccp_events": Group.MTIA,  # Kernels, DMA requests and waits alike: `mtia_group`.
    # Drawn a second time for viewers: the host annotation on the device, and the frame of the capture.
    "gpu_user_annotation": Group.MIRROR,
    "mtia_user_annotation": Group.MIRROR,
    "trace": Group.MIRROR,
    "cuda_profiler_range": Group.MIRROR,  # Its times are invented; `counter_ranges.py` reads its counters.
}
"""Category (lower case) -> group. Other categories count as unplaced under their name."""


def ascend_group(name: str, task_type: str | None, level: str | None, data_type: str | None) -> Group | None:
    """Return the group of a ``torch_npu`` event without category; ``None`` if it has none.

    Tasks of the cores, of the random generator and of the copy engines are device work. Waits, event records and the
    steps of a collective are not. Only collectives have a data type. Calls of CANN have a level.
    """
    if task_type is not None:
        if name == "MEMCPY_ASYNC":
            return Group.COPY
        return Group.KERNEL if _ASCEND_KERNEL.search(task_type) else Group.MIRROR
    if data_type is not None and name.startswith("hcom_"):
        return Group.KERNEL
    return Group.CALL if level is not None and "@" in name else None


def is_cann_call(name: str) -> bool:
    """Return whether this is a call of CANN, the runtime of Ascend devices."""
    return name.startswith("AscendCL@")


def is_step(name: str) -> bool:
    """Return whether an annotation is a step."""
    return any(pattern.match(name) for pattern in STEP_NAMES)


def is_annotation(name: str) -> bool:
    """Return whether a name is a ``record_function`` range of PyTorch itself, where ranges and ops share a category."""
    return _ANNOTATION.match(name) is not None


def call_kind(name: str) -> CallKind:
    """Return the kind of a runtime or driver call, from its CUDA, HIP or MTIA name."""
    if "HostFunc" in name:  # A callback that is put on a stream.
        return CallKind.OTHER
    if "GraphLaunch" in name:
        return CallKind.GRAPH
    if "Launch" in name or name in ("runFunction", "Node@launch"):
        return CallKind.KERNEL
    if _SYNC_CALL.search(name):
        return CallKind.SYNC if name != "hipMemcpyWithStream" else CallKind.COPY
    if "Memcpy" in name or "memcpy" in name:
        return CallKind.COPY
    if "Memset" in name or "memset" in name:
        return CallKind.MEMSET
    return CallKind.MEMORY if _MEMORY_CALL.search(name) else CallKind.OTHER


def copy_kind(name: str) -> CopyKind:
    """Return the direction of a copy row, from its name (CUDA and ROCm spellings)."""
    if "emset" in name:
        return CopyKind.MEMSET
    for pattern, kind in _DIRECTIONS:
        if pattern.search(name):
            return kind
    return CopyKind.UNKNOWN


def host_memory(name: str) -> HostMemory:
    """Return the host side of a copy row, from its name; ROCm does not record pinned or pageable."""
    if "Pageable" in name:
        return HostMemory.PAGEABLE
    if "Pinned" in name:
        return HostMemory.PINNED
    return default_host_memory(copy_kind(name))


def default_host_memory(kind: CopyKind) -> HostMemory:
    """Return the host side of a copy whose source lacks pinned or pageable."""
    sided = kind in (CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST, CopyKind.HOST_TO_HOST)
    return HostMemory.UNKNOWN if sided else HostMemory.NONE


def mtia_group(name: str) -> Group:
    """Return the group of an MTIA device event: kernels have any name, DMA requests and waits a few."""
    if _MTIA_WAIT.search(name):
        return Group.SYNC
    return Group.COPY if _MTIA_COPY.match(name) else Group.KERNEL


def mtia_direction(text: str) -> CopyKind:
    """Return the direction of an MTIA DMA request, from its argument ``direction``."""
    return _MTIA_DIRECTIONS.get(text.upper(), CopyKind.UNKNOWN)
