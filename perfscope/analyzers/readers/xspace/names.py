"""Meaning of the planes, lines and events of an XSpace, by their names."""

from __future__ import annotations

import re
from functools import lru_cache

from perfscope.analyzers.readers import communication
from perfscope.analyzers.readers.kineto import categories
from perfscope.model.trace import CopyKind, HostMemory

ACCELERATOR = re.compile(r"/device:(GPU|TPU):(\d+)$")
HOST_PLANES = re.compile(r"/host:(CPU|CUPTI|ROCTRACER|NVTX-CUPTI|TPU-runtime|python-tracer)$")
METADATA_PLANE = "/host:metadata"
ENVIRONMENT_PLANE = "Task Environment"

OPS_LINE, ASYNC_LINE, MODULES_LINE, STEPS_LINE, COUNTERS_LINE = (
    "XLA Ops", "Async XLA Ops", "XLA Modules", "Steps", "_counters_",
)  # fmt: skip

MIRRORS = frozenset(
    {
        "Framework Name Scope", "Framework Ops", "Launch Stats", "Source code", "TensorFlow Name Scope",
        "TensorFlow Ops", "XLA Modules", "XLA Ops", "Async XLA Ops",
    }
)  # fmt: skip
"""Lines that a viewer's conversion derives from other lines of the plane. On a TPU plane three of them are the record.
"""

TPU_RECORDS = frozenset({OPS_LINE, ASYNC_LINE, MODULES_LINE})
"""Lines of a TPU core's plane that are its record; the rest repeats them."""

STREAM = re.compile(r"stream #?(-?\d+)", re.IGNORECASE)
"""A stream of a GPU: the only lines with its work. XLA writes ``Stream #13(Kernel)``."""

WAITS = frozenset({"XLA TraceMe", "CUPTI overhead", "Tensor Core Sync Flag", "Sparse Core Syncs", "Overlay"})
"""Lines of a device that hold waits and the profiler's own time, but no work."""

NOISE = re.compile(r"ThreadpoolListener::(Record|StartRegion|StopRegion|Region)$")
"""Marks of the thread pool's bookkeeping: 30 to 60 % of the events of a CPU profile, without duration."""

END_MARK = "end: "
"""Prefix of a mark on the CPU backend that an instruction is complete; the rest is its name."""

JITTED = "PjitFunction("
"""A call of a jitted function; jaxlib writes it twice, one inside the other."""

PYTHON = "$"
"""Prefix of a function's name from the Python tracer: ``$file.py:12 function``."""

ALLOCATION, DEALLOCATION = "MemoryAllocation", "MemoryDeallocation"
RENDEZVOUS = "Rendezvous"
AWAIT = "::Await"

RUNTIME = re.compile(
    r"::|^(PjitFunction\(|DevicePut|ParseArguments$|Wait for |np\.asarray\(jax\.Array\)|shard_args$|batched_|"
    r"[HD]2[HD] Dispatch|ArrayImpl\.|Memory(De)?[Aa]llocation$|RecordUsage$|ScheduleWork$|MapDmaBuffer$|"
    r"ThenExecuteCallback$)"
)
"""Spans of JAX and XLA; other spans of a Python thread outside all of these are the user's annotations."""

_NUMBERED = re.compile(r"(.*)\((\d+)\)$", re.DOTALL)
_INSTRUCTION = re.compile(r"%?([^\s=]+)(?: = |$)")
_COLLECTIVE = re.compile(
    r"^(?:async-)?(all-reduce|all-gather|all-to-all|ragged-all-to-all|reduce-scatter|collective-permute|"
    r"collective-broadcast|send|recv)(?:-start|-done|-update)?(?:[.\-_]|$)"
)
_COPY_OP = re.compile(r"^(copy|slice|dynamic-slice|dynamic-update-slice)-(start|done)\b")
_BLIT = re.compile(r"__amd_rocclr_(copy|fill)Buffer")
_DEVICE_COPY = re.compile(r"^(Memcpy|Memset|memcpy|memset|Copy(Host|Device)To|\[CUDA mem)")
_HOST_SPACE = "S(5)"
_COPIED = re.compile(r"\((\w+\[[^\]]*\]\{[^}]*\}), (\w+\[[^\]]*\]\{[^}]*\}), ")
"""Target and source of a copy, in the tuple from its start to its end."""
_DETAIL = re.compile(r"(kind|kind_src|kind_dst|size|num_bytes):([^\s]+)")
_LAUNCH = re.compile(r"grid:(\d+),(\d+),(\d+) block:(\d+),(\d+),(\d+)(?:.*occ_pct:([\d.]+))?")
_COPY_SIDES = {"H2D": CopyKind.HOST_TO_DEVICE, "D2H": CopyKind.DEVICE_TO_HOST, "D2D": CopyKind.DEVICE_TO_DEVICE,
               "P2P": CopyKind.PEER_TO_PEER, "H2H": CopyKind.HOST_TO_HOST}  # fmt: skip


def numbered_program(text: str) -> tuple[str, int | None]:
    """Return (``jit_step``, 512) of ``jit_step(512)``: name and number of a program; ``None`` without a number."""
    match = _NUMBERED.match(text)
    return (match[1], int(match[2])) if match and len(match[2]) < 21 else (text, None)


def instruction(event: str) -> str:
    """Return ``fusion.1`` of ``%fusion.1 = f32[8]{0} fusion(...)``; a bare name is returned unchanged."""
    match = _INSTRUCTION.match(event)
    return match[1] if match else event


def is_communication(name: str) -> bool:
    """Return whether a name is a collective: of an HLO instruction, or of a kernel of NCCL or a similar library."""
    return collective(name) is not None or communication.is_communication(name)


def collective(name: str) -> str | None:
    """Return ``all_reduce`` for the instruction ``all-reduce-start.3``; ``None`` if it is not a collective."""
    match = _COLLECTIVE.match(name)
    return match[1].replace("-", "_") if match else None


def is_copy(name: str) -> bool:
    """Return whether an event on a GPU's stream is a copy or memset, including ROCm's copy kernels."""
    return _DEVICE_COPY.match(name) is not None or _BLIT.match(name) is not None


def is_copy_op(name: str) -> bool:
    """Return whether an instruction starts or awaits an asynchronous copy (``copy-start``, ``slice-done``)."""
    return _COPY_OP.match(name) is not None


@lru_cache(maxsize=4096)
def copy_kind(name: str) -> int:
    """Return the direction of a copy from the name of the event or of the call that made it."""
    if "emset" in name or "fillBuffer" in name:
        return int(CopyKind.MEMSET)
    for sides, kind in _COPY_SIDES.items():
        if sides in name or sides.replace("2", "to") in name:
            return int(kind)
    return int(categories.copy_kind(name))


def copied_shape_kind(event: str) -> int:
    """Return the direction of a TPU copy from its text (memory space 5 is the host's); ``UNKNOWN`` without shapes."""
    match = _COPIED.search(event)
    if match is None:
        return int(CopyKind.UNKNOWN)
    target, source = (_HOST_SPACE in side for side in match.groups())
    if target == source:
        return int(CopyKind.DEVICE_TO_DEVICE)
    return int(CopyKind.DEVICE_TO_HOST if target else CopyKind.HOST_TO_DEVICE)


@lru_cache(maxsize=4096)
def copy_details(text: str) -> tuple[int | None, int]:
    """Return (bytes, host side) of ``kind_src:Pageable kind_dst:Device size:4096 dest:0 async:1``; ``None`` if missing.

    ROCm writes size 0 for an unknown size.
    """
    details = dict(_DETAIL.findall(text))
    size = details.get("size") or details.get("num_bytes") or ""
    sides = " ".join(details.get(key, "") for key in ("kind", "kind_src", "kind_dst")).lower()
    memory = HostMemory.PAGEABLE if "pageable" in sides else HostMemory.PINNED if "pinned" in sides else None
    return (int(size) or None) if size.isdecimal() else None, int(HostMemory.UNKNOWN if memory is None else memory)


@lru_cache(maxsize=65536)
def launch_size(details: str) -> tuple[int | None, int | None, float | None]:
    """Return (blocks, threads per block, occupancy in percent) of ``... grid:16,1,1 block:512,1,1 ... occ_pct:50``.

    ROCm writes occupancy 0 for an unknown one.
    """
    match = _LAUNCH.search(details)
    if match is None:
        return None, None, None
    x, y, z, a, b, c = (int(number) for number in match.groups()[:6])
    percent = match[7].strip(".") if match[7] else ""
    return x * y * z, a * b * c, (float(percent) or None) if percent else None
