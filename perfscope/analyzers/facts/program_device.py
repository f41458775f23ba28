"""Which device compiled XLA programs are judged for: the one that ran them, else a stated assumption."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.hardware import Device, find_device
from perfscope.analyzers.trace import Trace

ASSUMED = {"gpu": "NVIDIA H100 80GB HBM3", "tpu": "TPU v5 lite"}
"""By platform, where nothing names the device: a compiled program does not say for which product it was compiled.
The H100 is what XLA's own ahead-of-time examples compile for; v5e is the smallest current TPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramDevice:
    """A device and how it is known."""

    device: Device
    recorded: bool
    """False: nothing named a device, times on it are those of an assumption and must say so."""

    def label(self) -> str:
        """``'NVIDIA H100 80GB HBM3'`` or ``'NVIDIA H100 80GB HBM3 (assumed)'``."""
        return self.device.name if self.recorded else f"{self.device.name} (assumed)"


def program_device(trace: Trace) -> ProgramDevice | None:
    """The device of the recording, else what is assumed for the programs' platform.

    ``None`` for programs compiled for a CPU, for several platforms at once, and where a device was recorded whose
    peaks are not known: no peak of another device may stand in for it.
    """
    devices = trace.rows["devices"]
    if len(devices):
        names = {trace.text(int(code)) for code in devices["name"]}
        found = {find_device(name) for name in names}
        one = found.pop() if len(found) == 1 else None
        return None if one is None else ProgramDevice(device=one, recorded=True)
    platforms = {module.platform for module in trace.hlo if module.is_scheduled}
    platform = platforms.pop() if len(platforms) == 1 else None
    assumed = find_device(ASSUMED[platform]) if platform in ASSUMED else None
    return None if assumed is None else ProgramDevice(device=assumed, recorded=False)
