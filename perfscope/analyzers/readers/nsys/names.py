"""Numbers and names of Nsight's tables in words: copies, waits, events of NVTX, ops of PyTorch in ranges."""

from __future__ import annotations

import re

from msgspec import Struct

from perfscope.analyzers.readers.kineto import categories
from perfscope.model.trace import CopyKind, HostMemory, SliceKind

NVTX_PUSH_POP = 59
NVTX_START_END = 60
NVTX_DOMAIN = 75
"""``NVTX_EVENTS.eventType``: ranges of a thread's stack, ranges between two moments, and names of domains."""
NVTX_OTHERS = {33: "NVTX category name", 34: "NVTX mark", 76: "end of an NVTX domain", 39: "NVTX thread name"}
"""Event types without a span, in words."""

COPY_KINDS: dict[int, CopyKind] = {
    1: CopyKind.HOST_TO_DEVICE,
    2: CopyKind.DEVICE_TO_HOST,
    3: CopyKind.HOST_TO_DEVICE,  # Copy to an array.
    4: CopyKind.DEVICE_TO_HOST,  # Copy from an array.
    5: CopyKind.DEVICE_TO_DEVICE,
    6: CopyKind.DEVICE_TO_DEVICE,
    7: CopyKind.DEVICE_TO_DEVICE,
    8: CopyKind.DEVICE_TO_DEVICE,
    9: CopyKind.HOST_TO_HOST,
    10: CopyKind.PEER_TO_PEER,
    11: CopyKind.HOST_TO_DEVICE,  # Pages of unified memory.
    12: CopyKind.DEVICE_TO_HOST,
    13: CopyKind.DEVICE_TO_DEVICE,
}
"""``copyKind`` (``ENUM_CUDA_MEMCPY_OPER``)."""

DIRECTIONS: dict[CopyKind, str] = {
    CopyKind.HOST_TO_DEVICE: "HtoD",
    CopyKind.DEVICE_TO_HOST: "DtoH",
    CopyKind.DEVICE_TO_DEVICE: "DtoD",
    CopyKind.PEER_TO_PEER: "PtoP",
    CopyKind.HOST_TO_HOST: "HtoH",
    CopyKind.UNKNOWN: "?",
}
"""Directions as PyTorch's profiler writes them: ``Memcpy HtoD (Pageable -> Device)``."""

MEMORY_KINDS = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}
"""``srcKind``, ``dstKind``, ``memKind`` (``ENUM_CUDA_MEM_KIND``)."""

SYNC_NAMES = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
"""``syncType`` (``ENUM_CUPTI_SYNC_TYPE``) as PyTorch's profiler writes it."""

_VERSION = re.compile(r"_v\d{4,5}$")
"""Suffix that Nsight appends: the CUDA version since which an API has its form (``cudaFree_v3020``)."""

_TORCH_RANGE = re.compile(
    r"(?P<name>.*?)(?:, seq = (?P<sequence>\d+))?, op_id = \d+"
    r"(?:, sizes = (?P<sizes>\[.*?\])(?:, input_op_ids = .*)?)?$",
    re.DOTALL,
)
"""``torch.autograd.profiler.emit_nvtx``: ``aten::mm, seq = 7, op_id = 12, sizes = [[2, 3], [3, 4]]``."""


class Range(Struct, frozen=True, kw_only=True):
    """Parsed text of an NVTX range."""

    name: str
    kind: SliceKind
    sequence: int | None = None
    """Autograd sequence number."""
    sizes: str | None = None
    """Input shapes, JSON text."""


def read_range(text: str) -> Range:
    """Parse a range's text: an op of PyTorch from ``emit_nvtx``, else an annotation."""
    match = _TORCH_RANGE.match(text)
    if match is None:
        return Range(name=text, kind=SliceKind.ANNOTATION)
    kind = SliceKind.ANNOTATION if categories.is_annotation(match["name"]) else SliceKind.OP
    sequence = match["sequence"]
    known = int(sequence) if sequence is not None and len(sequence) < 19 else None
    return Range(name=match["name"], kind=kind, sequence=known, sizes=match["sizes"])


def call_name(name: str) -> str:
    """Return ``cudaLaunchKernel`` for ``cudaLaunchKernel_v7000``; a driver's own ``_v2`` stays."""
    return _VERSION.sub("", name)


def host_memory(kind: CopyKind, source: int, target: int) -> HostMemory:
    """Return the host side of a copy between two kinds of memory; unified memory is not pinned or pageable."""
    sides: tuple[int, ...]
    if kind == CopyKind.HOST_TO_DEVICE:
        sides = (source,)
    elif kind == CopyKind.DEVICE_TO_HOST:
        sides = (target,)
    elif kind == CopyKind.HOST_TO_HOST:
        sides = (source, target)
    else:
        return HostMemory.NONE
    if 0 in sides:
        return HostMemory.PAGEABLE
    return HostMemory.PINNED if set(sides) == {1} else HostMemory.UNKNOWN


def copy_name(kind: CopyKind, source: int, target: int, devices: tuple[int, int] | None) -> str:
    """Return ``Memcpy HtoD (Pinned -> Device)``; ``devices``: the two of a peer copy, ``Memcpy PtoP (0 -> 3)``."""
    if kind == CopyKind.PEER_TO_PEER and devices is not None:
        return f"Memcpy PtoP ({devices[0]} -> {devices[1]})"
    sides = f"{MEMORY_KINDS.get(source, 'Unknown')} -> {MEMORY_KINDS.get(target, 'Unknown')}"
    return f"Memcpy {DIRECTIONS[kind]} ({sides})"
