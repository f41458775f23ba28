"""Targets for tests."""

from __future__ import annotations

from perfscope.analyzers.devices import named_device
from perfscope.analyzers.devices.target import Target
from perfscope.analyzers.devices.topology import Network

NDR = Network(link="InfiniBand NDR", cards=8, card_bandwidth=50e9, source="test")


def target(name: str = "H100 SXM", topology: tuple[int, ...] = (1, 1)) -> Target:
    """Devices of the tables: GPUs as (nodes, devices of a node), TPUs as chips along each axis."""
    device = named_device(name)
    assert device is not None
    count = 1
    for size in topology:
        count *= size
    tpu = device.vendor == "Google"
    return Target(
        asked=name,
        device=device,
        count=count,
        topology=topology,
        platform="tpu" if tpu else "gpu",
        memory_bytes=device.memory_bytes,
        network=NDR if not tpu and topology[0] > 1 else None,
    )
