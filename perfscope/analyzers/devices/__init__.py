"""Devices: the catalogue with its sources, topologies, targets, and the roofline."""

from __future__ import annotations

import re
from difflib import get_close_matches

from perfscope.analyzers.devices.device import Device
from perfscope.analyzers.devices.gpus import AMD, NVIDIA
from perfscope.analyzers.devices.tpus import GOOGLE

DEVICES: tuple[Device, ...] = (*NVIDIA, *AMD, *GOOGLE)


def find_device(name: str) -> Device | None:
    """The device a driver or framework calls ``name``; None if it is not in the tables.

    ``NVIDIA H100 80GB HBM3``, ``AMD Instinct MI300X VF``, ``TPU v5 lite``.
    """
    return next((device for device in DEVICES if re.search(device.match, name, re.IGNORECASE)), None)


def named_device(name: str) -> Device | None:
    """The device a person calls ``name``: as the tables print it, in any case and spacing, or as a driver does."""
    spelled = _plain(name)
    return next((device for device in DEVICES if _plain(device.name) == spelled), None) or find_device(name)


def close_names(name: str) -> tuple[str, ...]:
    """Devices whose names hold ``name`` or look like it, the best first; empty if none does."""
    spelled, names = _plain(name), {_plain(device.name): device.name for device in DEVICES}
    holding = [shown for plain, shown in names.items() if spelled and spelled in plain]
    alike = [names[plain] for plain in get_close_matches(spelled, names, n=5, cutoff=0.5)]
    return tuple(dict.fromkeys([*holding, *alike]))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


__all__ = ["DEVICES", "Device", "close_names", "find_device", "named_device"]
