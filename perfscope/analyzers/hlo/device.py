"""The device for which compiled XLA programs are analyzed: the one they ran on, a named one, or a stated assumption."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import Device, find_device, named_device, of_architecture
from perfscope.model.trace import Trace

ASSUMED = {"gpu": "NVIDIA H100 80GB HBM3", "tpu": "TPU v5 lite"}
"""Assumed device by platform if no device is known, because a compiled program does not name its product. The H100 is
the target of XLA's own ahead-of-time examples; v5e is the smallest current TPU.
"""


class ProgramDevice(Struct, frozen=True, kw_only=True):
    """A device and its origin."""

    device: Device
    recorded: bool
    """False if the recording names no device, so that times on this device are assumptions and must be marked as such.
    """
    given: bool = False
    """Whether the user named it (``Trace.judged_device``)."""
    architecture: str | None = None
    """Architecture the programs were compiled for, if known; the product is assumed."""

    def label(self) -> str:
        """``'H100 SXM'``, recorded or named; else ``'H100 SXM (assumed)'`` or ``'MI355X (assumed for gfx950)'``."""
        if self.recorded or self.given:
            return self.device.name
        return f"{self.device.name} (assumed{f' for {self.architecture}' if self.architecture else ''})"


def device_names(trace: Trace) -> frozenset[str]:
    """Return the names of the recorded devices, as the driver reports them."""
    return frozenset(trace.text(int(code)) for code in trace.rows["devices"]["name"]) - {""}


def recorded_device(trace: Trace) -> Device | None:
    """Return the device of the recording; ``None`` without a device, with several, or if its peaks are unknown."""
    devices = [find_device(name) for name in device_names(trace)]
    return devices[0] if devices and all(other is devices[0] for other in devices) else None


def program_device(trace: Trace) -> ProgramDevice | None:
    """Return the device of the recording, else the one that the user named, else an assumption for the platform.

    If the name of a dump contains the architecture, a product with that architecture is assumed.

    ``None`` for programs compiled for a CPU, for several platforms at once, and if a device with unknown peaks or
    several devices were recorded, because peaks of another device must not be used. A device named by the user applies
    only to programs compiled for its platform. Programs without arithmetic belong to every platform.
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
    """Return the memory of the devices: the smallest recorded one, else that of the compilation target."""
    sizes = trace.rows["devices"]["memory_bytes"]
    known = sizes[sizes > 0]
    if len(known):
        return int(known.min())
    return None if trace.target is None else trace.target.memory_bytes


def program_platform(trace: Trace) -> str | None:
    """Return the platform of all compiled programs of the trace; ``None`` if there are several, or if unknown."""
    platforms = {module.platform for module in trace.hlo if module.is_scheduled} - {None}
    return platforms.pop() if len(platforms) == 1 else None


def platform_of(device: Device) -> Literal["gpu", "tpu"]:
    """The XLA platform that compiles for a device."""
    return "tpu" if device.vendor == "Google" else "gpu"


def judged_for(trace: Trace, device: Device) -> Trace:
    """Return the trace with its compiled programs analyzed for a device named by the user.

    If the device does not apply, a note of the source gives the reason.
    """
    why = _unused(trace, device)
    if trace.target is None:
        trace = replace(trace, judged_device=device.name)
    return trace if why is None else trace.noted(f"--device {device.name} is not used: {why}")


def _unused(trace: Trace, device: Device) -> str | None:
    if trace.target is not None:
        return f"it was compiled for {trace.target.shown}; `perfscope compile --target` compiles it for another"
    if not trace.hlo:
        return "there is no compiled XLA program; everything else is measured, or analyzed for the device it ran on"
    recorded = sorted(device_names(trace))
    if recorded:
        return f"the recording names the device the programs ran on, {', '.join(recorded[:3])}"
    platforms = {module.platform for module in trace.hlo if module.is_scheduled} - {None}
    wanted = platform_of(device)
    if wanted in platforms:
        return None
    if "cpu" in platforms:
        return (
            "the programs were compiled for a CPU, which fuses and schedules in another way; they are analyzed by "
            "structure and measured time"
        )
    others = ", ".join(sorted(platform.upper() for platform in platforms if platform is not None))
    return (
        f"the programs were compiled for {f'a {others}' if others else 'no known platform'}, not for a {wanted.upper()}"
    )
