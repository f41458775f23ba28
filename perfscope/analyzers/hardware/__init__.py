"""Devices and their peaks, each with its source. One table a vendor."""

from __future__ import annotations

import re

from perfscope.analyzers.hardware.amd import AMD
from perfscope.analyzers.hardware.device import Device
from perfscope.analyzers.hardware.google import GOOGLE
from perfscope.analyzers.hardware.nvidia import NVIDIA

DEVICES: tuple[Device, ...] = (*NVIDIA, *AMD, *GOOGLE)

__all__ = ["DEVICES", "Device", "find_device"]


def find_device(name: str) -> Device | None:
    """The device a driver or framework calls ``name``; None if it is not in the tables.

    ``NVIDIA H100 80GB HBM3``, ``AMD Instinct MI300X VF``, ``TPU v5 lite``.
    """
    return next((device for device in DEVICES if re.search(device.match, name, re.IGNORECASE)), None)
