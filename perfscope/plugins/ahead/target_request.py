"""The text proto that XLA's GPU compilers need for an absent device, written from plain numbers.

Fields and their meaning: ``GpuTargetConfigProto`` and ``GpuDeviceInfoProto`` of XLA (stream_executor). The numbers of a
product are inputs; the limits of its generation are constants of this file, from the CUDA C++ Programming Guide
(technical specifications per compute capability) and the ROCm documentation (GPU hardware specifications). Omitted
fields have XLA's own default.
"""

from __future__ import annotations

from msgspec import Struct

from perfscope.analyzers.devices import Target
from perfscope.model.documents.compile_manifest import CompiledTarget
from perfscope.model.errors import UsageError
from perfscope.plugins.ahead.request import TargetRequest

KIB = 1 << 10
CUDNN = (9, 10, 0)
"""Version that the compiler may assume; jax 0.10 requires at least 9.8. No library is loaded."""
CUDA = "13.0.0"


class Generation(Struct, frozen=True, kw_only=True):
    """Limits of the cores of one architecture."""

    shared_core: int
    """Bytes of shared memory per core."""
    shared_block: int
    """Bytes of shared memory that one block may use by default."""
    shared_optin: int
    """Bytes of shared memory that one block may use by request."""
    threads_core: int
    lanes: int
    """Float32 multiply-adds that a core starts per clock."""
    registers: int = 1 << 16
    """32-bit registers per core."""
    warp: int = 32
    die_l2: int | None = None
    """Bytes of L2 per die, if the cores of each die have their own; XLA gets this value instead of the sum."""


def _nvidia(shared_core: int, shared_optin: int, threads_core: int, lanes: int) -> Generation:
    return Generation(
        shared_core=shared_core * KIB, shared_block=48 * KIB, shared_optin=shared_optin * KIB,
        threads_core=threads_core, lanes=lanes,
    )  # fmt: skip


def _amd(shared: int, die_l2: int | None = None) -> Generation:
    return Generation(
        shared_core=shared * KIB, shared_block=shared * KIB, shared_optin=shared * KIB, threads_core=2048, lanes=128,
        registers=1 << 17, warp=64, die_l2=None if die_l2 is None else die_l2 * KIB,
    )  # fmt: skip


GENERATIONS: dict[str, Generation] = {
    "gfx90a": _amd(64),
    "gfx942": _amd(64, 4096),
    "gfx950": _amd(160, 4096),
    "sm_70": _nvidia(96, 96, 2048, 64),
    "sm_75": _nvidia(64, 64, 1024, 64),
    "sm_80": _nvidia(164, 163, 2048, 64),
    "sm_86": _nvidia(100, 99, 1536, 128),
    "sm_89": _nvidia(100, 99, 1536, 128),
    "sm_90a": _nvidia(228, 227, 2048, 128),
    "sm_100a": _nvidia(228, 227, 2048, 128),
    "sm_103a": _nvidia(228, 227, 2048, 128),
    "sm_120a": _nvidia(100, 99, 1536, 128),
}


def gpu_target_config(target: Target) -> str:
    """Return XLA's target config for one GPU of a target, as text.

    XLA recomputes values rather than plan for more memory.

    ``UsageError`` if XLA requires a value that is unknown, or if the limits of the architecture are unknown.
    """
    device = target.device
    known = {
        "architecture": device.architecture, "cores": device.cores, "clock": device.clock_hz,
        "memory": target.memory_bytes, "L2 cache": device.l2_bytes,
    }  # fmt: skip
    missing = [name for name, value in known.items() if value is None]
    if missing:
        raise UsageError(
            f"--target {target.asked}: XLA needs values that are unknown for {device.name}: {', '.join(missing)}; "
            "set them in a TOML file"
        )
    architecture = str(device.architecture)
    limits = GENERATIONS.get(architecture)
    if limits is None:
        names = ", ".join(GENERATIONS)
        raise UsageError(
            f"--target: the limits of {architecture}, which its compiler needs, are unknown; known: {names}"
        )
    amd = architecture.startswith("gfx")
    lines = [*_core_lines(limits, architecture), *_chip_lines(target, limits)]
    if not amd:
        lines += _cuda_lines(architecture)
    major, minor, patch = (0, 0, 0) if amd else CUDNN
    shown = _quoted(device.name)
    return "\n".join(
        [
            "gpu_device_info {",
            *(f"  {line}" for line in lines),
            "}",
            f'platform_name: "{"ROCM" if amd else "CUDA"}"',
            f"dnn_version_info {{ major: {major} minor: {minor} patch: {patch} }}",
            f'device_description_str: "{shown}"',
            "",
        ]
    )


def _core_lines(limits: Generation, architecture: str) -> list[str]:
    """Return the lines that depend only on the generation."""
    amd = architecture.startswith("gfx")
    edge = 1 << 16 if amd else (1 << 16) - 1
    return [
        "threads_per_block_limit: 1024",
        f"threads_per_warp: {limits.warp}",
        f"shared_memory_per_block: {limits.shared_block}",
        f"shared_memory_per_core: {limits.shared_core}",
        f"shared_memory_per_block_optin: {limits.shared_optin}",
        f"threads_per_core_limit: {limits.threads_core}",
        f"fpus_per_core: {limits.lanes}",
        "block_dim_limit_x: 2147483647",
        f"block_dim_limit_y: {edge}",
        f"block_dim_limit_z: {edge}",
        _capability(architecture),
        f"registers_per_core_limit: {limits.registers}",
        f"registers_per_block_limit: {limits.registers}",
        "thread_dim_limit_x: 1024",
        "thread_dim_limit_y: 1024",
        f"thread_dim_limit_z: {1024 if amd else 64}",
        f'device_vendor: "{"Advanced Micro Devices, Inc" if amd else "NVIDIA Corporation"}"',
        "device_address_bits: 64",
        "ecc_enabled: true",
    ]


def _chip_lines(target: Target, limits: Generation) -> list[str]:
    """Return the lines that differ between products."""
    device = target.device
    return [
        f"core_count: {device.cores}",
        f"memory_bandwidth: {device.memory_bandwidth}",
        f"l2_cache_size: {limits.die_l2 or device.l2_bytes}",
        f"clock_rate_ghz: {(device.clock_hz or 0) / 1e9:g}",
        f"device_memory_size: {target.memory_bytes}",
        f'name: "{_quoted(device.name)}"',
    ]


def _cuda_lines(architecture: str) -> list[str]:
    return [
        f'platform_version: "Compute Capability {_version(architecture)}"',
        "pcie_bandwidth: 34359738368",
        f'driver_version: "{CUDA}"',
        f'runtime_version: "{CUDA}"',
        f'compile_time_toolkit_version: "{CUDA}"',
        f'dnn_version: "{".".join(map(str, CUDNN))}"',
    ]


def _capability(architecture: str) -> str:
    if architecture.startswith("gfx"):
        return f'rocm_compute_capability {{ gcn_arch_name: "{architecture}:sramecc+:xnack-" }}'
    major, minor = _version(architecture).rstrip("a").split(".")
    own = "ACCELERATED_FEATURES" if architecture.endswith("a") else "NONE"
    return f"cuda_compute_capability {{ major: {major} minor: {minor} feature_extension: {own} }}"


def _version(architecture: str) -> str:
    """Return ``9.0a`` for ``sm_90a``."""
    digits = architecture.removeprefix("sm_")
    kind = "a" if digits.endswith("a") else ""
    digits = digits.rstrip("a")
    return f"{digits[:-1]}.{digits[-1]}{kind}"


def _quoted(name: str) -> str:
    """Return the name without characters that could end the quoted text."""
    return "".join(letter for letter in name if letter.isascii() and letter.isprintable() and letter not in '"\\')


def target_request(target: Target, *, configured: bool) -> TargetRequest:
    """Return the request for the compiling child.

    ``configured``: XLA gets a target config, so its values must be known.

    ``UsageError`` for a device whose values are not sufficient for compiling, or without a compiler.
    """
    if target.platform == "gpu" and target.device.architecture is None:
        raise UsageError(
            f"--target {target.asked}: no compiler for {target.device.name} is known; "
            "`perfscope plan` models a mesh of it from its peaks"
        )
    return TargetRequest(
        machine=CompiledTarget(
            asked=target.asked,
            device=target.device.name,
            platform=target.platform,
            count=target.count,
            topology=target.compiler_topology,
            memory_bytes=target.memory_bytes,
            description=dict(target.description()),
        ),
        vendor=target.device.vendor,
        config=gpu_target_config(target) if configured and target.platform == "gpu" else None,
        generation=target.generation,
        host_shape=target.host_shape,
    )
