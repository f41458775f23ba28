"""What a plan costs besides recomputation: bytes over the links between devices, and to and from the host.

All of it modelled, as a range: at best hidden under the computation, at worst none of it. A ring moves
(N - 1) / N of the bytes through each device for an all-gather or a reduce-scatter, twice that for an all-reduce
(Patarasuk and Yuan, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.checkpointing.simulate import Placement, Simulation
from perfscope.analyzers.checkpointing.step_model import StepModel
from perfscope.analyzers.devices import Device, find_device, named_device
from perfscope.analyzers.devices.topology import named_link

NODE = 8
"""Devices that the links of a device reach: a board of eight is what most machines have. Beyond it a network card
for each device is assumed."""

NETWORK = "InfiniBand NDR"

HOST_LINKS = {
    "GB200": "NVLink-C2C",
    "B200": "PCIe 5 x16",
    "H200": "PCIe 5 x16",
    "H100": "PCIe 5 x16",
    "L4": "PCIe 4 x16",
    "A": "PCIe 4 x16",
    "RTX 4090": "PCIe 4 x16",
    "RTX 3090": "PCIe 4 x16",
    "MI3": "PCIe 5 x16",
    "MI2": "PCIe 4 x16",
    "V100": "PCIe 3 x16",
    "T4": "PCIe 3 x16",
    "RTX 2080": "PCIe 3 x16",
}
"""By the beginning of a device's name in the hardware tables, what joins it to the host: the bus interface on its data
sheet. Devices that are not here (TPU) state none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """Bytes/s in one direction; ``None`` where not known."""

    between: int | None
    between_name: str | None
    to_host: int | None
    to_host_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What a plan moves in a step, one direction, and how long that takes alone."""

    between_bytes: int
    """Through each device's links, beyond what today's step moves."""
    host_bytes: int
    """To the host and back, together."""
    worst_ns: int | None
    """None of it hidden under computation; ``None`` where a bandwidth is not known."""


def device_of(model: StepModel, name: str | None = None) -> Device | None:
    """The device of the hardware tables that the user names, or the recording."""
    if name is not None:
        return named_device(name)
    return None if model.device_name is None else find_device(model.device_name)


def links_of(device: Device | None, devices: int) -> Links:
    """What joins ``devices`` such devices, and each to its host."""
    between, between_name = (None, None) if device is None else (device.link_bandwidth, device.link)
    network = named_link(NETWORK)
    if devices > NODE and device is not None and network is not None:
        between, between_name = network.bandwidth, f"{NETWORK}, assumed"
    joined = (
        None if device is None else next((HOST_LINKS[key] for key in HOST_LINKS if device.name.startswith(key)), None)
    )
    host = None if joined is None else named_link(joined)
    return Links(
        between=between,
        between_name=between_name,
        to_host=None if host is None else host.bandwidth,
        to_host_name=None if host is None else host.name,
    )


def transfer(model: StepModel, placement: Placement, simulation: Simulation, links: Links) -> Transfer:
    """What a plan moves beyond today's step.

    ZeRO-1 and -2 reduce-scatter the gradients and gather the parameters: what an all-reduce of the gradients moves.
    ZeRO-3 gathers the parameters once more, for the forward (Rajbhandari et al., SC 2020, section 7). An optimizer on
    the host gets the gradients and sends the parameters; how long its update takes there is not in it.
    """
    count = placement.devices
    ring = (count - 1) / count
    gradients = model.gradient_bytes
    plain = 2 * ring * gradients
    gathers = {0: 0.0, 1: plain, 2: plain, 3: ring * (2 * model.parameter_bytes + gradients)}
    moved = gathers[placement.level] if placement.level else plain
    between = max(0, round(moved - (plain if model.world_size > 1 else 0)))
    host = 2 * simulation.offloaded_bytes
    if placement.optimizer_on_host:
        host += (gradients + model.parameter_bytes) // placement.parts(1)
    worst: int | None = 0
    for size, rate in ((between, links.between), (host, links.to_host)):
        if size and rate is None:
            worst = None
        elif size and rate is not None and worst is not None:
            worst += round(1e9 * size / rate)
    return Transfer(between_bytes=between, host_bytes=host, worst_ns=worst)


def placements(model: StepModel, devices: int) -> tuple[Placement, ...]:
    """Where state could be: all here, divided among ``devices``, the optimizer's on the host."""
    choices = [Placement(devices=devices)]
    if devices > 1 and not model.sharded:
        choices += [Placement(devices=devices, level=1), Placement(devices=devices, level=2)]
        choices += [Placement(devices=devices, level=3)]
    if model.optimizer_bytes and not model.on_host:
        choices += [
            Placement(devices=placement.devices, level=placement.level, optimizer_on_host=True) for placement in choices
        ]
    return tuple(choices)
