"""A compilation target that need not be present: devices, their number, and the links between them."""

from __future__ import annotations

import re
from math import prod
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

from perfscope.analyzers.devices import DEVICES, Device
from perfscope.analyzers.devices.topology import Network
from perfscope.model.errors import DataError

Platform = Literal["gpu", "tpu"]

GENERATIONS = {
    "TPU v4": "v4", "TPU v5e": "v5e", "TPU v5p": "v5p", "TPU v6e": "v6e", "TPU7x (one of two)": "TPU7x",
}  # fmt: skip
"""libtpu's name of each generation, the part of a topology name before the colon (libtpu 0.0.42.1 rejects ``v7x`` and
``v5litepod``).
"""


class Target(Struct, frozen=True, kw_only=True):
    """Devices to compile for.

    ``assumptions`` has a sentence for each value that was assumed because it was not specified.
    """

    asked: str
    """Text that the user wrote."""
    device: Device
    count: int
    """Devices as a program sees them: a TPU7x chip is two."""
    topology: tuple[int, ...]
    """GPUs: (nodes, devices per node). TPUs: chips along each axis, (2, 4) for ``v5e:2x4``."""
    platform: Platform
    memory_bytes: int | None
    """Memory of one device; None if unknown."""
    network: Network | None = None
    """Network between nodes; None for one node, or if unknown."""
    host_shape: tuple[int, ...] | None = None
    """TPUs: chips of one host along x, y and z: (2, 4, 1) for ``v5e:2x4``. None for GPUs, or if not specified."""
    source: str = ""
    """Source of the numbers: the sources of the tables, or the user's file."""
    assumptions: tuple[str, ...] = field(default=())

    @property
    def nodes(self) -> int:
        """Number of groups joined by fast links: nodes of GPUs, racks of NVL72; one for a slice of TPUs."""
        return self.topology[0] if self.platform == "gpu" else 1

    @property
    def node_devices(self) -> int:
        """Devices per node."""
        return self.count // self.nodes

    @property
    def chips(self) -> int:
        """Chips of a TPU slice; devices for GPUs."""
        return prod(self.topology)

    @property
    def hosts(self) -> int | None:
        """Hosts of a TPU slice, each a process of the program; None for GPUs, or if not specified."""
        return None if self.host_shape is None else self.chips // prod(self.host_shape)

    @property
    def shown(self) -> str:
        """Name for reports: ``H100 SXM``, ``8 H100 SXM``, ``16 H100 SXM in 2 nodes``, ``8 TPU v5e (2x4)``."""
        if self.count == 1:
            return self.device.name
        several = f"{self.count} {self.device.name}"
        if self.platform == "tpu":
            return f"{several} ({'x'.join(map(str, self.topology))})"
        return several if self.nodes == 1 else f"{several} in {self.nodes} nodes"

    @property
    def layout(self) -> str:
        """``topology`` as artifacts write it: ``1x8``, ``2x4``."""
        return "x".join(map(str, self.topology))

    @property
    def compiler_topology(self) -> str:
        """Topology for XLA: ``partitions x hosts x devices`` of GPUs (``1x1x8``), chips of a TPU slice (``2x4``).

        A partition is a group that fast links join; a rack of NVL72 is one partition with many hosts.
        """
        if self.platform == "tpu":
            return self.layout
        node = self.device.node
        host = self.node_devices if node is None else min(self.node_devices, node.host_devices)
        if self.node_devices % host:
            host = 1
        return f"{self.nodes}x{self.node_devices // host}x{host}"

    @property
    def generation(self) -> str | None:
        """libtpu's name of the chip, for example ``v5e``; None for GPUs."""
        return GENERATIONS.get(self.device.name)

    def description(self) -> dict[str, object]:
        """Return every value as plain data for JSON; ``described_target`` restores the same target."""
        device = msgspec.to_builtins(self.device)
        del device["match"]
        return {
            "asked": self.asked,
            "device": device,
            "count": self.count,
            "topology": list(self.topology),
            "platform": self.platform,
            "memory_bytes": self.memory_bytes,
            "network": None if self.network is None else msgspec.to_builtins(self.network),
            "host_shape": None if self.host_shape is None else list(self.host_shape),
            "source": self.source,
            "assumptions": list(self.assumptions),
        }


# A target read from an artifact's plain data: a report then needs no table, and the file is untrusted.


def described_target(description: object) -> Target:
    """Return the target that ``Target.description()`` described. ``DataError`` in one line for invalid data.

    The device's pattern (``match``) is taken from our table, or matches only the device's name: a pattern from an
    untrusted file is never run.
    """
    try:
        target: Target = msgspec.convert(_with_pattern(description), Target, strict=True)
    except msgspec.ValidationError as error:
        raise DataError(f"description of the target: {error}") from None
    fault = _fault(target)
    if fault is not None:
        raise DataError(f"description of the target: {fault}")
    return target


def _with_pattern(description: object) -> object:
    device = description.get("device") if isinstance(description, dict) else None
    name = device.get("name") if isinstance(device, dict) else None
    if not isinstance(description, dict) or not isinstance(device, dict) or not isinstance(name, str):
        return description
    known = next((device for device in DEVICES if device.name == name), None)
    pattern = f"^{re.escape(name)}$" if known is None else known.match
    return {**description, "device": {**device, "match": pattern}}


def _fault(target: Target) -> str | None:
    """Return an inconsistency of the target, or None."""
    device: Device = target.device
    numbers: list[tuple[str, Any]] = [
        ("count", target.count),
        ("memory_bytes", target.memory_bytes),
        ("device.memory_bandwidth", device.memory_bandwidth),
        ("device.link_bandwidth", device.link_bandwidth),
        ("device.memory_bytes", device.memory_bytes),
        ("device.cores", device.cores),
        ("device.clock_hz", device.clock_hz),
        ("device.l2_bytes", device.l2_bytes),
        *((f"device.peak_flops.{name}", peak) for name, peak in device.peak_flops.items()),
        *(("topology", axis) for axis in target.topology),
        *(("host_shape", axis) for axis in target.host_shape or ()),
    ]
    wrong = next((name for name, value in numbers if value is not None and not 0 < value < 1 << 63), None)
    if wrong is not None:
        return f"{wrong} is not a size"
    if not target.topology or target.count % target.chips:
        return "count and topology do not agree"
    if target.host_shape is not None and target.chips % prod(target.host_shape):
        return "topology and host_shape do not agree"
    return None
