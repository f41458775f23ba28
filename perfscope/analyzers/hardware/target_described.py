"""A target from the plain data that an artifact carries: a report needs no table, and reads strangers' files."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import msgspec

from perfscope.analyzers.hardware import DEVICES, Device
from perfscope.analyzers.hardware.target import Target
from perfscope.model.errors import DataError


def described_target(description: object) -> Target:
    """The target that ``Target.description()`` told. ``DataError`` in one line for whatever else.

    The pattern of its device (``match``) is our table's, or matches nothing but the device's name: a stranger's
    pattern is not run.
    """
    try:
        found: Target = msgspec.convert(_with_pattern(description), Target, strict=True)
    except msgspec.ValidationError as error:
        raise DataError(f"description of the target: {error}") from None
    fault = _fault(found)
    if fault is not None:
        raise DataError(f"description of the target: {fault}")
    return found


def _with_pattern(description: object) -> object:
    device = description.get("device") if isinstance(description, dict) else None
    name = device.get("name") if isinstance(device, dict) else None
    if not isinstance(description, dict) or not isinstance(device, dict) or not isinstance(name, str):
        return description
    known = next((one for one in DEVICES if one.name == name), None)
    pattern = f"^{re.escape(name)}$" if known is None else known.match
    return {**description, "device": {**device, "match": pattern}}


def _fault(target: Target) -> str | None:
    """What makes no sense in it."""
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
        return f"{wrong} is no size"
    if not target.topology or target.count % target.chips:
        return "count and topology do not agree"
    if target.host_shape is not None and target.chips % prod(target.host_shape):
        return "topology and host_shape do not agree"
    return None
