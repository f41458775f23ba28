"""State of the machine during a launch: counters that separate a slower program from a slower machine.

They are read from kernel files and from the driver before, after and (once a second) during a launch, from outside the
program, and only those listed here. Unreadable ones are left out.
"""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Self

from msgspec import Struct, field

from perfscope.model import environment
from perfscope.model.environment import tool_output
from perfscope.profiler.launch.program import end_with_us

# Clocks, temperature, power and slowdowns of the NVIDIA devices a launch may use, from nvidia-smi.
# https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
CAPPED = 0x4
"""The power limit lowers the clocks: the program's work needs more power than the device may use."""
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""Hardware slowdown, too hot (by software, by hardware), and the power brake of the machine."""

_FIELDS = ("index", "uuid", "name", "driver_version", "clocks.sm", "temperature.gpu", "power.draw")
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""Name of the field in drivers from 535 on, and before."""

PERIOD_S = 1.0
"""Seconds between two samples during a launch; each takes a fraction of a millisecond."""
MOST_CPU_LINES = 4096
"""Most lines of /proc/cpuinfo: enough for hundreds of processors."""


class GpuState(Struct, frozen=True, kw_only=True):
    """One device at one moment; ``None``: not reported."""

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
    """Runs nvidia-smi. ``visible``: ``CUDA_VISIBLE_DEVICES``."""

    def __init__(self, visible: str | None = None) -> None:
        """Find out whether there are devices; without any, nvidia-smi is not run again."""
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
        self._reasons: tuple[str, ...] = _REASONS
        self._present = True
        self._present = bool(self.look())

    def look(self) -> tuple[GpuState, ...]:
        """The current state of the devices that programs see here."""
        for reasons in self._reasons if self._present else ():
            text = tool_output(*_query(reasons))
            if text is not None:
                self._reasons = (reasons,)
                return visible_gpus(parse_nvidia_smi(text), self._visible)
        return ()

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[GpuState]]:
        """A list that is filled with samples of the devices, one per second, when the block ends."""
        seen: list[GpuState] = []
        if not self._present:
            yield seen
            return
        with tempfile.TemporaryFile("w+") as printed:
            command = [*_query(self._reasons[0]), f"--loop-ms={round(PERIOD_S * 1000)}"]
            looking = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.DEVNULL, preexec_fn=end_with_us()
            )
            try:
                yield seen
            finally:
                looking.kill()
                looking.wait()
                printed.seek(0)
                seen += visible_gpus(parse_nvidia_smi(printed.read()), self._visible)


def gpu_counters(before: Sequence[GpuState], seen: Sequence[GpuState]) -> dict[str, float]:
    """Counters of a launch: mean over its devices and samples; ``before``: the devices before it."""
    result: dict[str, float] = {}
    for name, values in (
        ("gpu_mhz", [gpu.sm_mhz for gpu in seen]),
        ("gpu_celsius", [gpu.celsius for gpu in seen]),
        ("gpu_watts", [gpu.watts for gpu in seen]),
        ("gpu_celsius_before", [gpu.celsius for gpu in before]),
    ):
        known = [value for value in values if value is not None]
        if known:
            result[name] = fmean(known)
    reasons = [gpu.reasons for gpu in seen if gpu.reasons is not None]
    if reasons:
        result["gpu_slowed_share"] = fmean(bool(bits & SLOWED) for bits in reasons)
        result["gpu_capped_share"] = fmean(bool(bits & CAPPED) for bits in reasons)
    return result


def _query(reasons: str) -> list[str]:
    return ["nvidia-smi", f"--query-gpu={','.join((*_FIELDS, reasons))}", "--format=csv,noheader,nounits"]


def parse_nvidia_smi(text: str) -> tuple[GpuState, ...]:
    """Parse the output of ``nvidia-smi --format=csv,noheader,nounits``; other lines are left out."""
    states = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_FIELDS) + 1 or not cells[0].isdigit():
            continue
        try:
            reasons = int(cells[7], 16)
        except ValueError:
            reasons = None
        states.append(
            GpuState(
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
    return tuple(states)


def visible_gpus(gpus: Sequence[GpuState], visible: str | None) -> tuple[GpuState, ...]:
    """Devices in ``CUDA_VISIBLE_DEVICES``, by number or the beginning of their id; all if it is not set.

    It ends at the first invalid entry, as in CUDA. MIG parts are not distinguished: all count.
    """
    if visible is None or "MIG" in visible:
        return tuple(gpus)
    states: list[GpuState] = []
    for word in (word.strip() for word in visible.split(",")):
        mine = [
            gpu for gpu in gpus if word == str(gpu.index) or (word.startswith("GPU-") and gpu.uuid.startswith(word))
        ]
        if len({gpu.index for gpu in mine}) != 1:
            break
        states += mine
    return tuple(states)


def _number(text: str) -> float | None:
    """Parse a number; ``None`` for ``[N/A]`` and ``[Not Supported]``."""
    try:
        return float(text)
    except ValueError:
        return None


class Sources(Struct, frozen=True, kw_only=True):
    """Locations of the kernel's files."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")


class MachineCounters(Struct, frozen=True, kw_only=True):
    """Counters that only grow, at one moment."""

    clock_s: float
    ticks: Mapping[str, int] = field(default_factory=dict)
    """Time of all processors: ``busy``, ``steal``, ``all``, in kernel ticks."""
    pressure_us: Mapping[str, int] = field(default_factory=dict)
    """Time in which some task waited for ``cpu``, ``memory``, ``io``."""
    periods: int | None = None
    throttled: int | None = None
    """Periods of the control group's quota, and those in which it was used up."""
    own_s: float = 0.0
    """Processor time of launches that have ended."""


class MachineWatch:
    """Samples the machine while its block runs; ``counters`` then has the result."""

    def __init__(self, gpus: Gpus, sources: Sources | None = None) -> None:
        self._gpus = gpus
        self._sources = Sources() if sources is None else sources
        self._over = threading.Event()
        self._mhz: list[float] = []
        self._load = 0.0
        self._thread: threading.Thread | None = None
        self._watched = gpus.watched()

    def __enter__(self) -> Self:
        """Read growing counters, and start to sample the others."""
        self._load = os.getloadavg()[0]
        self._gpus_before = self._gpus.look()
        self._before = read_counters(self._sources)
        self._gpus_seen = self._watched.__enter__()
        self._thread = threading.Thread(target=self._look_on, name="perfscope-watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Read again."""
        assert self._thread is not None
        self._over.set()
        self._thread.join()
        self._after = read_counters(self._sources)
        self._watched.__exit__(kind, error, trace)

    def _look_on(self) -> None:
        while not self._over.wait(PERIOD_S / 2 if not self._mhz else PERIOD_S):
            clock = cpu_mhz(self._sources)
            self._mhz.append(0.0 if clock is None else clock)

    def counters(self) -> dict[str, float]:
        """By name (meanings in `perfscope.analyzers.compare.ab.environment`); unknown values are missing."""
        result = counter_rates(self._before, self._after)
        result["load_before"] = self._load
        clocks = [clock for clock in self._mhz if clock]
        if clocks:
            result["cpu_mhz"] = sum(clocks) / len(clocks)
        result |= gpu_counters(self._gpus_before, self._gpus_seen)
        return {name: round(value, 4) for name, value in result.items()}


def read_counters(sources: Sources) -> MachineCounters:
    """Read the counters that only grow."""
    periods, throttled = _quota(sources)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return MachineCounters(
        clock_s=time.monotonic(),
        ticks=_ticks(sources),
        pressure_us=_pressure(sources),
        periods=periods,
        throttled=throttled,
        own_s=used.ru_utime + used.ru_stime,
    )


def counter_rates(before: MachineCounters, after: MachineCounters) -> dict[str, float]:
    """Changes between two readings, per second or as a share.

    ``others_share``: share of all processors' time used by programs other than the launch; in a container whose kernel
    shows the whole machine, by everything on it.
    """
    seconds = max(after.clock_s - before.clock_s, 1e-9)
    result = {"own_cpus": (after.own_s - before.own_s) / seconds}
    if before.ticks and after.ticks:
        grown = {name: after.ticks[name] - before.ticks[name] for name in after.ticks}
        if grown["all"] > 0:
            own = (after.own_s - before.own_s) * os.sysconf("SC_CLK_TCK")
            result["others_share"] = max(0.0, grown["busy"] - own) / grown["all"]
            result["steal_share"] = grown["steal"] / grown["all"]
    for name, total in after.pressure_us.items():
        if name in before.pressure_us:
            result[f"{name}_pressure"] = (total - before.pressure_us[name]) / 1e6 / seconds
    if None not in (before.periods, before.throttled, after.periods, after.throttled):
        periods = (after.periods or 0) - (before.periods or 0)
        # Without a quota there are no periods, and nothing is throttled.
        result["throttled_share"] = ((after.throttled or 0) - (before.throttled or 0)) / periods if periods > 0 else 0.0
    return result


def machine_facts(gpus: Gpus) -> dict[str, str]:
    """Machine of the launches, for a report: models and versions, without machine names."""
    devices = gpus.look()
    facts = {
        "gpu": ", ".join(f"{count}x {name}" for name, count in Counter(device.name for device in devices).items()),
        "driver": devices[0].driver if devices else "",
        "cpu": environment.cpu_model() or "",
        "cpus": str(os.cpu_count() or ""),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
    }
    return {name: value for name, value in facts.items() if value}


def cpu_mhz(sources: Sources) -> float | None:
    """Current mean clock of the processors from the kernel; ``None`` if unavailable."""
    try:
        with (sources.proc / "cpuinfo").open(encoding="utf-8", errors="replace") as stream:
            lines = [line for line, _ in zip(stream, range(MOST_CPU_LINES), strict=False) if line.startswith("cpu MHz")]
        clocks = [float(line.partition(":")[2]) for line in lines]
    except (OSError, ValueError):
        return None
    return sum(clocks) / len(clocks) if clocks else None


def _ticks(sources: Sources) -> dict[str, int]:
    words = _text(sources.proc / "stat").partition("\n")[0].split()
    if len(words) < 9 or words[0] != "cpu" or not all(word.isdigit() for word in words[1:]):
        return {}
    user, nice, system, idle, waiting, hard, soft, steal = map(int, words[1:9])
    busy = user + nice + system + hard + soft  # guests are in user and nice (proc_stat(5))
    return {"busy": busy, "steal": steal, "all": busy + idle + waiting + steal}


def _pressure(sources: Sources) -> dict[str, int]:
    totals = {}
    for name in ("cpu", "memory", "io"):
        total = _text(sources.proc / "pressure" / name).partition("\n")[0].rpartition("total=")[2]
        if total.isdigit():
            totals[name] = int(total)
    return totals


def _quota(sources: Sources) -> tuple[int | None, int | None]:
    """(periods, throttled) of our control group."""
    own = next((line for line in _text(sources.proc / "self" / "cgroup").splitlines() if line.startswith("0::")), "")
    for file in (sources.cgroup / own[3:].lstrip("/") / "cpu.stat", sources.cgroup / "cpu.stat"):
        quota = dict(line.split(maxsplit=1) for line in _text(file).splitlines() if len(line.split()) == 2)
        if quota.get("nr_periods", "").isdigit() and quota.get("nr_throttled", "").isdigit():
            return int(quota["nr_periods"]), int(quota["nr_throttled"])
    return None, None


def _text(path: Path) -> str:
    """The beginning of a small kernel file; ``''`` if it is missing."""
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(1 << 16)
    except OSError:
        return ""
