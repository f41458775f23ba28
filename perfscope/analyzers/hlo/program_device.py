"""Which device compiled XLA programs are judged for: the one that ran them, a named one, or a stated assumption."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from perfscope.analyzers.devices import Device, find_device, named_device, of_architecture
from perfscope.model.trace import Trace

ASSUMED = {"gpu": "NVIDIA H100 80GB HBM3", "tpu": "TPU v5 lite"}
"""By platform, where nothing names the device: a compiled program does not say for which product it was compiled.
The H100 is what XLA's own ahead-of-time examples compile for; v5e is the smallest current TPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramDevice:
    """A device and how it is known."""

    device: Device
    recorded: bool
    """False: the recording names no device, times on this one are those of an assumption and must say so."""
    given: bool = False
    """The user named it (``Trace.judged_device``)."""
    architecture: str | None = None
    """What the programs were compiled for, where that is known; the product is assumed."""

    def label(self) -> str:
        """``'H100 SXM'``, recorded or named; else ``'H100 SXM (assumed)'`` or ``'MI355X (assumed for gfx950)'``."""
        if self.recorded or self.given:
            return self.device.name
        return f"{self.device.name} (assumed{f' for {self.architecture}' if self.architecture else ''})"


def device_names(trace: Trace) -> frozenset[str]:
    """Names of the devices that the recording has, as the driver reports them."""
    return frozenset(trace.text(int(code)) for code in trace.rows["devices"]["name"]) - {""}


def recorded_device(trace: Trace) -> Device | None:
    """The device of the recording; ``None`` where none is named, its peaks are not known, or there are several."""
    devices = [find_device(name) for name in device_names(trace)]
    return devices[0] if devices and all(other is devices[0] for other in devices) else None


def program_device(trace: Trace) -> ProgramDevice | None:
    """The device of the recording, else the one the user named, else what is assumed for the programs' platform.

    Where the name of a dump says for which cores it was compiled, a product with these is assumed.

    ``None`` for programs compiled for a CPU, for several platforms at once, and where a device was recorded whose
    peaks are not known, or several: no peak of another device may stand in for it. A device that the user named
    counts for programs compiled for its kind of device only. Programs that compute nothing belong to every platform.
    """
    if device_names(trace):
        device = recorded_device(trace)
        return None if device is None else ProgramDevice(device=device, recorded=True)
    if trace.target is not None:
        return ProgramDevice(device=trace.target.device, recorded=False, given=True)
    platform = program_platform(trace)
    if platform is None or platform not in ASSUMED:
        return None
    named = named_device(trace.judged_device) if trace.judged_device is not None else None
    if named is not None and platform_of(named) == platform:
        return ProgramDevice(device=named, recorded=False, given=True)
    usual = find_device(ASSUMED[platform])
    architectures = {module.architecture for module in trace.hlo if module.is_scheduled}
    architecture = architectures.pop() if len(architectures) == 1 else None
    products = of_architecture(architecture or "")
    assumed = products[0] if products and usual not in products else usual
    if assumed is None:
        return None
    return ProgramDevice(device=assumed, recorded=False, architecture=architecture if products else None)


def device_memory_bytes(trace: Trace) -> int | None:
    """Memory of the devices: the smallest that was recorded, else that of the target it was compiled for."""
    sizes = trace.rows["devices"]["memory_bytes"]
    known = sizes[sizes > 0]
    if len(known):
        return int(known.min())
    return None if trace.target is None else trace.target.memory_bytes


def program_platform(trace: Trace) -> str | None:
    """What all compiled programs of the trace were compiled for; ``None`` if for several, or if nothing says."""
    platforms = {module.platform for module in trace.hlo if module.is_scheduled} - {None}
    return platforms.pop() if len(platforms) == 1 else None


def platform_of(device: Device) -> Literal["gpu", "tpu"]:
    """The XLA platform that compiles for a device."""
    return "tpu" if device.vendor == "Google" else "gpu"


def judged_for(trace: Trace, device: Device) -> Trace:
    """The trace with its compiled programs judged for a device the user named.

    Where the device does not count, a note of the source says why.
    """
    why = _unused(trace, device)
    if trace.target is None:
        trace = replace(trace, judged_device=device.name)
    return trace if why is None else trace.noted(f"--device {device.name} is not used: {why}")


def _unused(trace: Trace, device: Device) -> str | None:
    if trace.target is not None:
        return f"it was compiled for {trace.target.shown}; `perfscope compile --target` compiles it for another"
    if not trace.hlo:
        return "there is no compiled XLA program; everything else is measured, or judged for the device it ran on"
    recorded = sorted(device_names(trace))
    if recorded:
        return f"the recording names the device the programs ran on, {', '.join(recorded[:3])}"
    platforms = {module.platform for module in trace.hlo if module.is_scheduled} - {None}
    wanted = platform_of(device)
    if wanted in platforms:
        return None
    if "cpu" in platforms:
        return (
            "the programs were compiled for a CPU, which fuses and schedules in another way; they are judged by their "
            "structure and by measured time"
        )
    others = ", ".join(sorted(platform.upper() for platform in platforms if platform is not None))
    return (
        f"the programs were compiled for {f'a {others}' if others else 'no known platform'}, not for a {wanted.upper()}"
    )
