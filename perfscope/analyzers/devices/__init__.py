"""Devices: the catalogue with its sources, topologies, targets, and the roofline."""

from __future__ import annotations

import re

from perfscope.analyzers.devices.device import Device
from perfscope.analyzers.devices.gpus import AMD, NVIDIA
from perfscope.analyzers.devices.tpus import GOOGLE

DEVICES: tuple[Device, ...] = (*NVIDIA, *AMD, *GOOGLE)


def find_device(name: str) -> Device | None:
    """The device a driver or framework, or the tables themselves, call ``name``; None if it is not in the tables.

    ``NVIDIA H100 80GB HBM3``, ``AMD Instinct MI300X VF``, ``TPU v5 lite``.
    """
    by_driver = next((device for device in DEVICES if re.search(device.match, name, re.IGNORECASE)), None)
    return by_driver or next((device for device in DEVICES if device.name == name), None)


_AMD_ARCHITECTURES = {(9, 4): "gfx942", (9, 5): "gfx950"}
"""By compute capability as HIP reports it. (9, 0) is left out: MI210 and a half of an MI250 look alike."""


def device_of_chip(
    vendor: str, capability: tuple[int, int], cores: int, *, memory_bytes: int = 0, clock_hz: int = 0
) -> Device | None:
    """The device with these properties, for recordings that leave out its name; 0: not recorded.

    ``vendor``: ``AMD`` or ``NVIDIA``, ``""`` where it was not recorded. ``capability``: compute capability, major and
    minor. ``None`` where none of the tables fits, or several do.
    """
    architectures = []
    if vendor in ("AMD", ""):
        architectures.append(_AMD_ARCHITECTURES.get(capability, ""))
    if vendor.upper() in ("NVIDIA", ""):
        architectures.append(f"sm_{capability[0]}{capability[1]}")
    fitting = [device for name in architectures for device in of_architecture(name) if device.cores == cores]
    for wanted, value in ((memory_bytes, "memory_bytes"), (clock_hz, "clock_hz")):
        alike = [device for device in fitting if _near(wanted, getattr(device, value))]
        fitting = alike if wanted and len(fitting) > 1 else fitting
    return fitting[0] if len(fitting) == 1 else None


def of_architecture(architecture: str) -> tuple[Device, ...]:
    """Devices whose cores compilers call ``gfx950``, ``sm_90`` (or ``sm_90a``), those of the table first."""
    return tuple(
        device for device in DEVICES if architecture and (device.architecture or "").removesuffix("a") == architecture
    )


def _near(wanted: int, known: int | None) -> bool:
    """Within 2%; a device of which the tables do not say it may be any."""
    return known is None or abs(wanted - known) <= 0.02 * known


def named_device(name: str) -> Device | None:
    """The device a person calls ``name``: as the tables print it, in any case and spacing, or as a driver does."""
    spelled = _plain(name)
    return next((device for device in DEVICES if _plain(device.name) == spelled), None) or find_device(name)


def close_names(name: str) -> tuple[str, ...]:
    """Devices whose names hold ``name`` or look like it, the best first; empty if none does."""
    from difflib import get_close_matches

    spelled, names = _plain(name), {_plain(device.name): device.name for device in DEVICES}
    holding = [shown for plain, shown in names.items() if spelled and spelled in plain]
    alike = [names[plain] for plain in get_close_matches(spelled, names, n=5, cutoff=0.5)]
    return tuple(dict.fromkeys([*holding, *alike]))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


__all__ = ["DEVICES", "Device", "close_names", "device_of_chip", "find_device", "named_device", "of_architecture"]
