"""What every category and name of a Kineto trace stands for, over all ages of the schema."""

from __future__ import annotations

import re
from enum import IntEnum

from perfscope.model.trace import CallKind, CopyKind, HostMemory, SliceKind


class Group(IntEnum):
    """The table an event goes to."""

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
    "mtia_ccp_events": Group.MTIA,  # kernels, DMA requests and waits alike: `mtia_group`
    # shown a second time for viewers: the host annotation projected on the device, and the capture's frame
    "gpu_user_annotation": Group.MIRROR,
    "mtia_user_annotation": Group.MIRROR,
    "trace": Group.MIRROR,
    "cuda_profiler_range": Group.MIRROR,  # its times are made up; `counter_ranges.py` reads its counters
}
"""Category (lower case) -> group. Anything else is counted as unplaced under its name."""

ASCEND_DEVICE = 0
"""What stands for the device of an Ascend trace, which has one: its events name processes of the viewer."""

_ASCEND_KERNEL = re.compile(r"AI_|AIC|AIV|MIX_|KERNEL|DSA_SQE")


def ascend_group(name: str, task_type: str | None, level: str | None, data_type: str | None) -> Group | None:
    """The table an event of ``torch_npu`` without category goes to; ``None``: it is none.

    Tasks of the cores, of the random generator and of the copy engines are device work; waits, event records and the
    steps of a collective are not. A collective is the one event that has a data type. Calls of CANN have a level.
    """
    if task_type is not None:
        if name == "MEMCPY_ASYNC":
            return Group.COPY
        return Group.KERNEL if _ASCEND_KERNEL.search(task_type) else Group.MIRROR
    if data_type is not None and name.startswith("hcom_"):
        return Group.KERNEL
    return Group.CALL if level is not None and "@" in name else None


def is_cann_call(name: str) -> bool:
    """A call of CANN, the runtime of Ascend devices."""
    return name.startswith("AscendCL@")


SLICE_KINDS: dict[str, SliceKind] = {
    "cpu_op": SliceKind.OP,
    "operator": SliceKind.OP,
    "user_annotation": SliceKind.ANNOTATION,
    "python_function": SliceKind.PYTHON,
    "overhead": SliceKind.OVERHEAD,
}

STEP_NAMES = (re.compile(r"perfscope\.step#(\d+)$"), re.compile(r"ProfilerStep\s?#(\d+)$"))
"""Annotations that are steps, the surest first."""

DEVICE_MARKS = frozenset({"gpu_user_annotation", "mtia_user_annotation"})
"""Categories of annotations of the host that the profiler draws again around their work on each device and stream."""


def is_step(name: str) -> bool:
    """True for an annotation that is a step."""
    return any(pattern.match(name) for pattern in STEP_NAMES)


NUMBERS = re.compile(rb'\[[\s,]*(?:"(?:[-+\d\s.,eE\[\]]|True|False|None|inf|nan){0,512}"[\s,]*){0,128}\]')
"""Concrete inputs of an op that may be kept: dimensions, strides, flags and factors, but no text."""

_ANNOTATION = re.compile(
    r"(?:nccl|gloo|mpi|ucc):|FSDP::|Optimizer\.|enumerate\(Data|ProfilerStep|## |DistributedDataParallel\.|"
    r"Torch-Compiled Region|TorchDynamo|perfscope\."
)

GLOO_NAME = re.compile(r"(?:gloo|mpi|ucc):(\w+)$")
"""Host collectives: c10d annotates them with the backend; the operation is group 1."""

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


def is_annotation(name: str) -> bool:
    """True for a ``record_function`` range of PyTorch itself, where the source writes those and ops alike."""
    return _ANNOTATION.match(name) is not None


def call_kind(name: str) -> CallKind:
    """What a runtime or driver call does, from its CUDA, HIP or MTIA name."""
    if "HostFunc" in name:  # a callback that is put on a stream
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
    """Direction of a copy row, from its name (CUDA and ROCm spellings)."""
    if "emset" in name:
        return CopyKind.MEMSET
    for pattern, kind in _DIRECTIONS:
        if pattern.search(name):
            return kind
    return CopyKind.UNKNOWN


def host_memory(name: str) -> HostMemory:
    """Host side of a copy row, from its name; ROCm does not say pinned or pageable."""
    if "Pageable" in name:
        return HostMemory.PAGEABLE
    if "Pinned" in name:
        return HostMemory.PINNED
    return unsaid_host_memory(copy_kind(name))


def unsaid_host_memory(kind: CopyKind) -> HostMemory:
    """Host side of a copy whose source does not say pinned or pageable."""
    sided = kind in (CopyKind.HOST_TO_DEVICE, CopyKind.DEVICE_TO_HOST, CopyKind.HOST_TO_HOST)
    return HostMemory.UNKNOWN if sided else HostMemory.NONE


def mtia_group(name: str) -> Group:
    """What an MTIA device event is: its kernels have names of every kind, DMA requests and waits have few."""
    if _MTIA_WAIT.search(name):
        return Group.SYNC
    return Group.COPY if _MTIA_COPY.match(name) else Group.KERNEL


def mtia_direction(text: str) -> CopyKind:
    """Direction of an MTIA DMA request, from its argument ``direction``."""
    return _MTIA_DIRECTIONS.get(text.upper(), CopyKind.UNKNOWN)
