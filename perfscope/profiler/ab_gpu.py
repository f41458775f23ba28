"""Clocks, temperature, power and slowdowns of the NVIDIA devices a launch may use: from NVML, else from nvidia-smi.

NVML (the package nvidia-ml-py) answers in microseconds and is asked while a launch runs. nvidia-smi is a process, so it
is asked before and behind it only; its clocks are those of a device whose program has just ended.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from perfscope.profiler.environment import ask

# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
CAPPED = 0x4
"""The power limit lowers the clocks: what the program asks for costs more than the device may take."""
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""Hardware slowdown, too hot (by software, by hardware), and the power brake of the machine."""

_FIELDS = ("index", "uuid", "name", "driver_version", "clocks.sm", "temperature.gpu", "power.draw")
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The same under the name that drivers from 535 on know it by, and before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device at one moment; ``None``: it does not say."""

    index: int
    uuid: str
    name: str
    driver: str
    sm_mhz: float | None = None
    celsius: float | None = None
    watts: float | None = None
    reasons: int | None = None
    """Why its clocks are not higher: NVML's bits."""


class Gpus:
    """Asks the driver, by the cheapest way that answers. ``visible``: ``CUDA_VISIBLE_DEVICES``."""

    def __init__(self, visible: str | None = None) -> None:
        """Find out who answers; without a device nobody is asked again."""
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
        self._nvml = _nvml()
        self._reasons = ""
        self._present = True
        self._present = bool(self.look())

    @property
    def cheap(self) -> bool:
        """Whether it may be asked while a launch runs."""
        return self._present and self._nvml is not None

    @property
    def source(self) -> str | None:
        """Who answers; ``None`` without a device."""
        if not self._present:
            return None
        return "NVML, each second" if self.cheap else "nvidia-smi, before and behind each launch"

    def look(self) -> tuple[Gpu, ...]:
        """The devices that programs see here, now."""
        if not self._present:
            return ()
        found = _by_nvml(self._nvml) if self._nvml is not None else self._by_smi()
        return visible_of(found, self._visible)

    def counters(self, ends: Sequence[Sequence[Gpu]], looks: Sequence[Sequence[Gpu]]) -> dict[str, float]:
        """Of a launch: mean over its devices and looks; ``ends``: before it and behind it."""
        if not ends or not any(ends):
            return {}
        seen = [one for look in (looks or ends[-1:]) for one in look]
        found: dict[str, float] = {}
        for name, values in (
            ("gpu_mhz", [one.sm_mhz for one in seen]),
            ("gpu_celsius", [one.celsius for one in seen]),
            ("gpu_watts", [one.watts for one in seen]),
            ("gpu_celsius_before", [one.celsius for one in ends[0]]),
        ):
            known = [value for value in values if value is not None]
            if known:
                found[name] = fmean(known)
        reasons = [one.reasons for look in (looks or ends) for one in look if one.reasons is not None]
        if reasons:
            found["gpu_slowed_share"] = fmean(bool(bits & SLOWED) for bits in reasons)
            found["gpu_capped_share"] = fmean(bool(bits & CAPPED) for bits in reasons)
        return found

    def _by_smi(self) -> tuple[Gpu, ...]:
        for reasons in (self._reasons,) if self._reasons else _REASONS:
            text = ask("nvidia-smi", f"--query-gpu={','.join((*_FIELDS, reasons))}", "--format=csv,noheader,nounits")
            if text is not None:
                self._reasons = reasons
                return parse(text)
        return ()


def parse(text: str) -> tuple[Gpu, ...]:
    """What ``nvidia-smi --format=csv,noheader,nounits`` printed; lines of another shape are left out."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_FIELDS) + 1 or not cells[0].isdigit():
            continue
        try:
            reasons = int(cells[7], 16)
        except ValueError:
            reasons = None
        found.append(
            Gpu(
                index=int(cells[0]),
                uuid=cells[1],
                name=cells[2],
                driver=cells[3],
                sm_mhz=_number(cells[4]),
                celsius=_number(cells[5]),
                watts=_number(cells[6]),
                reasons=reasons,
            )
        )
    return tuple(found)


def visible_of(gpus: Sequence[Gpu], visible: str | None) -> tuple[Gpu, ...]:
    """Those that ``CUDA_VISIBLE_DEVICES`` names, by number or the beginning of their id; all where it is not set.

    It ends at the first entry that names none, as CUDA reads it. Parts of a device (MIG) are not told apart: all are.
    """
    if visible is None or "MIG" in visible:
        return tuple(gpus)
    found: list[Gpu] = []
    for word in (word.strip() for word in visible.split(",")):
        mine = [
            one for one in gpus if word == str(one.index) or (word.startswith("GPU-") and one.uuid.startswith(word))
        ]
        if len(mine) != 1:
            break
        found += mine
    return tuple(found)


def _number(text: str) -> float | None:
    """Of ``[N/A]`` and ``[Not Supported]`` none."""
    try:
        return float(text)
    except ValueError:
        return None


def _nvml() -> Any:
    """The module, when there is one and a driver answers it; else ``None``."""
    try:
        module = importlib.import_module("pynvml")
        module.nvmlInit()
    except Exception:  # not installed, no driver, another version of it: each raises its own, and nvidia-smi is left
        return None
    return module


def _by_nvml(module: Any) -> tuple[Gpu, ...]:
    try:
        driver = _text(module.nvmlSystemGetDriverVersion())
        handles = [module.nvmlDeviceGetHandleByIndex(index) for index in range(module.nvmlDeviceGetCount())]
    except module.NVMLError:
        return ()
    return tuple(_device(module, index, handle, driver) for index, handle in enumerate(handles))


def _device(module: Any, index: int, handle: Any, driver: str) -> Gpu:
    def told(name: str, *arguments: Any) -> Any:
        """What a function of NVML answers; ``None`` where this device or version does not."""
        function = getattr(module, name, None)
        try:
            return None if function is None else function(handle, *arguments)
        except module.NVMLError:
            return None

    watts = told("nvmlDeviceGetPowerUsage")
    reasons = told("nvmlDeviceGetCurrentClocksEventReasons")
    return Gpu(
        index=index,
        uuid=_text(told("nvmlDeviceGetUUID") or ""),
        name=_text(told("nvmlDeviceGetName") or ""),
        driver=driver,
        sm_mhz=told("nvmlDeviceGetClockInfo", module.NVML_CLOCK_SM),
        celsius=told("nvmlDeviceGetTemperature", module.NVML_TEMPERATURE_GPU),
        watts=None if watts is None else watts / 1000,
        reasons=told("nvmlDeviceGetCurrentClocksThrottleReasons") if reasons is None else reasons,
    )


def _text(held: Any) -> str:
    """Older versions of the package give bytes."""
    return held.decode(errors="replace") if isinstance(held, bytes) else str(held)
