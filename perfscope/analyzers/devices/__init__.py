"""Devices: the catalogue with its sources, topologies, targets, and the roofline."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from perfscope.analyzers.devices import roofline
from perfscope.analyzers.devices.device import Device
from perfscope.analyzers.devices.gpus import AMD, AWS, NVIDIA
from perfscope.analyzers.devices.tpus import GOOGLE
from perfscope.model.hooks import names_from

DEVICES: tuple[Device, ...] = (*NVIDIA, *AMD, *GOOGLE, *AWS)

_AMD_ARCHITECTURES = {(9, 4): "gfx942", (9, 5): "gfx950"}
"""Architecture by compute capability as HIP reports it. (9, 0) is omitted because MI210 and half an MI250 look alike.
"""

_SAME_CHIP = ("H800 PCIe", "H800 SXM")
"""Products with the chip of a commoner one (H100), from which only their names and links differ."""


def find_device(name: str) -> Device | None:
    """Return the device that a driver, a framework or our tables call ``name``; None if it is unknown.

    Examples: ``NVIDIA H100 80GB HBM3``, ``AMD Instinct MI300X VF``, ``TPU v5 lite``.
    """
    by_driver = next((device for device in DEVICES if re.search(device.match, name, re.IGNORECASE)), None)
    return by_driver or next((device for device in DEVICES if device.name == name), None)


def device_of_chip(
    vendor: str, capability: tuple[int, int], cores: int, *, memory_bytes: int = 0, clock_hz: int = 0
) -> Device | None:
    """Return the device with these properties, for recordings that lack its name; 0 means not recorded.

    ``vendor``: ``AMD``, ``NVIDIA`` or ``""`` if it was not recorded. ``capability``: compute capability, major and
    minor. ``None`` if no device or several devices fit; an H800 is taken for an H100.
    """
    architectures = []
    if vendor in ("AMD", ""):
        architectures.append(_AMD_ARCHITECTURES.get(capability, ""))
    if vendor.upper() in ("NVIDIA", ""):
        architectures.append(f"sm_{capability[0]}{capability[1]}")
    chips = (device for name in architectures for device in of_architecture(name) if device.name not in _SAME_CHIP)
    fitting = [device for device in chips if device.cores == cores]
    for wanted, value in ((memory_bytes, "memory_bytes"), (clock_hz, "clock_hz")):
        alike = [device for device in fitting if _near(wanted, getattr(device, value))]
        fitting = alike if wanted and len(fitting) > 1 else fitting
    return fitting[0] if len(fitting) == 1 else None


def of_architecture(architecture: str) -> tuple[Device, ...]:
    """Return the devices of an architecture in compiler terms (``gfx950``, ``sm_90`` or ``sm_90a``), in table order."""
    return tuple(
        device for device in DEVICES if architecture and (device.architecture or "").removesuffix("a") == architecture
    )


def _near(wanted: int, known: int | None) -> bool:
    """Whether the values differ by at most 2 %; True if the tables lack the value of a device."""
    return known is None or abs(wanted - known) <= 0.02 * known


def named_device(name: str) -> Device | None:
    """Return the device called ``name`` by a user: as in the tables, in any case and spacing, or as a driver does."""
    spelled = _plain(name)
    return next((device for device in DEVICES if _plain(device.name) == spelled), None) or find_device(name)


def close_names(name: str) -> tuple[str, ...]:
    """Return the devices whose names contain or resemble ``name``, best match first; empty without a match."""
    from difflib import get_close_matches

    spelled, names = _plain(name), {_plain(device.name): device.name for device in DEVICES}
    holding = [shown for plain, shown in names.items() if spelled and spelled in plain]
    alike = [names[plain] for plain in get_close_matches(spelled, names, n=5, cutoff=0.5)]
    return tuple(dict.fromkeys([*holding, *alike]))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


__all__ = [
    "DEVICES",
    "Device",
    "close_names",
    "device_of_chip",
    "find_device",
    "named_device",
    "of_architecture",
    "roofline",
]

if TYPE_CHECKING:
    from perfscope.analyzers.devices.device import GIGA as GIGA
    from perfscope.analyzers.devices.device import Node as Node
    from perfscope.analyzers.devices.roofline import NS as NS
    from perfscope.analyzers.devices.roofline import Bound as Bound
    from perfscope.analyzers.devices.roofline import Roof as Roof
    from perfscope.analyzers.devices.roofline import bytes_ns as bytes_ns
    from perfscope.analyzers.devices.roofline import flops_ns as flops_ns
    from perfscope.analyzers.devices.roofline import kernel_roof as kernel_roof
    from perfscope.analyzers.devices.roofline import link_ns as link_ns
    from perfscope.analyzers.devices.roofline import peak_flops as peak_flops
    from perfscope.analyzers.devices.roofline import peak_ratio as peak_ratio
    from perfscope.analyzers.devices.roofline import vector_ns as vector_ns
    from perfscope.analyzers.devices.target import Target as Target
    from perfscope.analyzers.devices.target import described_target as described_target
    from perfscope.analyzers.devices.target_text import known_names as known_names
    from perfscope.analyzers.devices.target_text import parse_target as parse_target
    from perfscope.analyzers.devices.target_text import read_bytes_text as read_bytes_text
    from perfscope.analyzers.devices.tiles import Computation as Computation
    from perfscope.analyzers.devices.tiles import Sizes as Sizes
    from perfscope.analyzers.devices.tiles import padded_share as padded_share
    from perfscope.analyzers.devices.tiles import product_sizes as product_sizes
    from perfscope.analyzers.devices.tiles import wave_share as wave_share
    from perfscope.analyzers.devices.topology import KEYS as KEYS
    from perfscope.analyzers.devices.topology import Network as Network
    from perfscope.analyzers.devices.topology import Topology as Topology
    from perfscope.analyzers.devices.topology import closes as closes
    from perfscope.analyzers.devices.topology import named_link as named_link
    from perfscope.analyzers.devices.topology import read_network as read_network
    from perfscope.analyzers.devices.topology import read_topology as read_topology
    from perfscope.analyzers.devices.user_table import UserTable as UserTable
    from perfscope.analyzers.devices.user_table import read_user_table as read_user_table
else:
    __getattr__ = names_from(
        __name__,
        {
            "device": "GIGA Node",
            "roofline": "Bound NS Roof bytes_ns flops_ns kernel_roof link_ns peak_flops peak_ratio vector_ns",
            "target": "Target described_target",
            "target_text": "known_names parse_target read_bytes_text",
            "tiles": "Computation Sizes padded_share product_sizes wave_share",
            "topology": "KEYS Network Topology closes named_link read_network read_topology",
            "user_table": "UserTable read_user_table",
        },
    )
