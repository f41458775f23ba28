"""A target as the plain data that the child process is given: the command looks up, the child does not."""

from __future__ import annotations

from perfscope.analyzers.devices.target_request import gpu_target_config
from perfscope.analyzers.hardware.target import Target
from perfscope.model.documents.compile_request import TargetRequest
from perfscope.model.errors import UsageError


def target_request(target: Target, *, configured: bool) -> TargetRequest:
    """What the child is told of a target. ``configured``: XLA will be, so it must be known what to tell it.

    ``AskedWronglyError`` for a device of which not enough is known to compile for it.
    """
    return TargetRequest(
        asked=target.asked,
        device=target.device.name,
        platform=target.platform,
        vendor=target.device.vendor,
        count=target.count,
        topology=target.compiler_topology,
        memory_bytes=target.memory_bytes,
        description=dict(target.description()),
        config=_config(target) if configured and target.platform == "gpu" else None,
        generation=target.generation,
        host_shape=target.host_shape,
    )


def _config(target: Target) -> str:
    device = target.device
    needed = {
        "architecture": device.architecture, "cores": device.cores, "clock": device.clock_hz,
        "memory": target.memory_bytes, "L2 cache": device.l2_bytes,
    }  # fmt: skip
    missing = [name for name, value in needed.items() if value is None]
    if (
        device.architecture is None
        or device.cores is None
        or device.clock_hz is None
        or target.memory_bytes is None
        or device.l2_bytes is None
    ):
        raise UsageError(
            f"--target {target.asked}: XLA must be told more than is known of {device.name}: {', '.join(missing)}; "
            "a TOML file of your own can say it"
        )
    return gpu_target_config(
        name=device.name, architecture=device.architecture, cores=device.cores, clock_hz=device.clock_hz,
        memory_bandwidth=device.memory_bandwidth, memory_bytes=target.memory_bytes, l2_bytes=device.l2_bytes,
    )  # fmt: skip
