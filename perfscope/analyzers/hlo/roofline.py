"""How fast each instruction of a program could run at most on a device, and what holds it back.

The roof of an instruction is the longest of three times, each at the vendor's peak: its arithmetic, its bytes
through device memory, its bytes on the links. Nothing runs faster, except where data stays in a cache between two
instructions; real kernels reach 60 to 90% of it. Modelled; only ``measured_ns`` comes from a trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from perfscope.analyzers.devices import Device
from perfscope.analyzers.hlo.cost.module import InstructionCost, ModuleCost, hlo_costs
from perfscope.analyzers.hlo.cost.phase import Phase
from perfscope.analyzers.hlo.cost.types import Cost, Product
from perfscope.analyzers.hlo.time import HloTime, InstructionTime, hlo_time
from perfscope.model.trace import Trace

Bound = Literal["compute", "memory", "link", "unknown"]

NS = 1_000_000_000

_PEAK_OF = {
    "bf16": "bfloat16", "f16": "float16", "s8": "int8", "u8": "int8", "s4": "int8", "u4": "int8",
    "f8e4m3": "fp8", "f8e4m3fn": "fp8", "f8e4m3fnuz": "fp8", "f8e4m3b11fnuz": "fp8", "f8e5m2": "fp8",
    "f8e5m2fnuz": "fp8", "f8e3m4": "fp8",
}  # fmt: skip

_BF16_PASSES = {"default": 1, "high": 3, "highest": 6, "dot_bf16_bf16_f32_x3": 3, "dot_bf16_bf16_f32_x6": 6,
                "dot_bf16_bf16_f32": 1, "dot_bf16_bf16_f32_x9": 9}  # fmt: skip
"""Products of bfloat16 parts that a float32 product is made of on TPU, or where an algorithm asks for it
(``jax.lax.Precision``, ``jax.lax.DotAlgorithmPreset``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The least time one run of an instruction takes on a device, and where it comes from. Times in ns."""

    row: InstructionCost
    bound: Bound
    """What takes longest. ``unknown``: its arithmetic, or the device's peak for it, is not known, or nothing
    of it is counted."""
    compute_ns: float | None
    """None: arithmetic or peak not known."""
    memory_ns: float
    link_ns: float | None
    """None: it sends to other devices and the device's links are not known, or it moves data to or from the host,
    whose link is not."""
    measured_ns: float | None = None
    """Mean of its runs in a trace; None where none was found."""

    @property
    def roof_ns(self) -> float:
        """The least time; where a part is unknown, the longest of the others, a lower bound still."""
        return max(self.compute_ns or 0.0, self.memory_ns, self.link_ns or 0.0)

    @property
    def headroom_ns(self) -> float | None:
        """Measured time beyond the roof in all its runs, at most what a perfect kernel would save.

        0 where it was faster than the roof: its data came out of a cache. None where it was not measured, where
        the bound is unknown or where it is not known how often it runs.
        """
        if self.measured_ns is None or self.bound == "unknown" or not self.row.runs_exact:
            return None
        return max(0.0, self.measured_ns - self.roof_ns) * self.row.runs

    @property
    def share_of_roof(self) -> float | None:
        """Roof over measured time: 1 is perfect, above 1 a cache helped. None as for ``headroom_ns``."""
        if not self.measured_ns or self.bound == "unknown":
            return None
        return self.roof_ns / self.measured_ns


def peak_flops(product: Product, device: Device) -> float | None:
    """FLOP/s the device can reach at most in products of a kind; ``None`` where no peak is known.

    float32 without a request for precision may run in TF32 on a GPU that has it and in one bfloat16 pass on
    TPU, as XLA does by default; ``highest`` is plain float32 or six passes.
    """
    peaks = device.peak_flops
    if product.dtype != "f32":
        found = peaks.get(_PEAK_OF.get(product.dtype, ""))
        return None if found is None else float(found)
    passes = _BF16_PASSES.get(product.precision)
    if passes is not None and ("float32" not in peaks or product.precision.startswith("dot_")):
        return peaks["bfloat16"] / passes if "bfloat16" in peaks else None
    if "float32" not in peaks:
        return None
    plain = product.precision in ("highest", "dot_f32_f32_f32")
    return float(peaks["float32"] if plain else peaks.get("tf32", peaks["float32"]))


def products_ns(cost: Cost, device: Device) -> float | None:
    """Time of all matrix products of a cost at the device's peaks; ``None`` if the peak of one is not known."""
    total = 0.0
    for product, flops in cost.products.items():
        peak = peak_flops(product, device)
        if peak is None:
            return None
        total += flops * NS / peak
    return total


def compute_ns(cost: Cost, device: Device) -> float | None:
    """Least time of a cost's arithmetic; ``None`` where some of it, or a peak, is not known.

    Matrix products and the rest run side by side on units of their own, so the longer counts. The rest runs at
    the ``float32`` peak; on a device that states none (TPU) it is left out, which keeps the time a lower bound.
    Transcendentals count one FLOP each, far less than they take.
    """
    products = products_ns(cost, device)
    if cost.unknown or products is None:
        return None
    rest = cost.flops - sum(cost.products.values()) + cost.transcendentals
    plain = device.peak_flops.get("float32")
    return max(products, rest * NS / plain) if plain else products


def roof_of(row: InstructionCost, device: Device, measured_ns: float | None = None) -> Roof:
    """The roof of one instruction on a device."""
    cost = row.once
    arithmetic = compute_ns(cost, device)
    memory = cost.bytes * NS / device.memory_bandwidth
    link: float | None = 0.0
    if cost.wire_bytes:
        link = cost.wire_bytes * NS / device.link_bandwidth if device.link_bandwidth else None
    if cost.host_bytes:
        link = None
    return Roof(
        row=row,
        bound=_bound(arithmetic, memory, link),
        compute_ns=arithmetic,
        memory_ns=memory,
        link_ns=link,
        measured_ns=measured_ns,
    )


def _bound(arithmetic: float | None, memory: float, link: float | None) -> Bound:
    if arithmetic is None or link is None:
        return "unknown"
    longest = max(arithmetic, memory, link)
    if not longest:
        return "unknown"
    if longest == link:
        return "link"
    return "compute" if longest == arithmetic else "memory"


def roofline(
    cost: ModuleCost, device: Device, measured_ns: Mapping[tuple[str, str], float] | None = None
) -> tuple[Roof, ...]:
    """Roofs of all instructions that run by themselves, in the order of the module.

    ``measured_ns``: mean time of one run, by computation and instruction; those left out were not measured.
    """
    times = measured_ns or {}
    return tuple(
        roof_of(row, device, times.get((row.computation, row.instruction.name))) for row in cost.launched if row.runs
    )


def measured_roofline(trace: Trace, device: Device) -> tuple[tuple[Roof, ...], ...]:
    """Roofs of every program in ``trace.hlo``, in the same order, with the times the trace shows.

    ``device`` is named by the caller: a trace of XLA's CPU backend has none that a peak is known for.
    """
    times = trace.fact(run_times)
    return tuple(roofline(cost, device, times[index]) for index, cost in enumerate(trace.fact(hlo_costs)))


def run_times(trace: Trace) -> tuple[Mapping[tuple[str, str], float], ...]:
    """Mean measured ns of one run of each instruction, by computation and name; one mapping for each of ``trace.hlo``.

    No device is asked for: rates need no peaks.
    """
    return tuple(_run_times(trace.fact(hlo_time), index, cost) for index, cost in enumerate(trace.fact(hlo_costs)))


def _run_times(times: HloTime, index: int, cost: ModuleCost) -> dict[tuple[str, str], float]:
    """Mean time of one run of each instruction of a program, by computation and instruction.

    An instruction may be several pieces of work each time (kernels of one library call). How many is its pieces over
    its runs; a whole number, as a trace may begin or end inside an execution. In a loop of unknown length a piece
    counts as a run.
    """
    executions = agreed_executions(times, index, cost) or Fraction(1)
    return {
        key: time.mean_ns * (1 if runs is None else max(1, round(time.calls / (executions * runs))))
        for key, (time, runs) in _timed(times, index, cost).items()
    }


def agreed_executions(times: HloTime, index: int, cost: ModuleCost) -> Fraction | None:
    """How often a program ran, all devices together: what most of its instructions agree on, pieces over runs.

    ``index``: of the module in ``Trace.hlo``. ``None`` if no instruction outside loops of unknown length was measured.
    """
    agreed = Counter(
        Fraction(time.calls, runs) for time, runs in _timed(times, index, cost).values() if runs is not None
    )
    return min(agreed, key=lambda ratio: (-agreed[ratio], ratio), default=None)


def _timed(times: HloTime, index: int, cost: ModuleCost) -> dict[tuple[str, str], tuple[InstructionTime, int | None]]:
    """What was measured of each instruction, with its runs in one run of the program; None: not known."""
    found = {}
    for row in cost.launched:
        time = times.by_key.get((index, row.instruction.name))
        if time is not None and time.computation == row.computation and row.runs:
            found[row.computation, row.instruction.name] = (time, row.runs if row.runs_exact else None)
    return found


def roof_sum_ns(roofs: Iterable[Roof]) -> float:
    """Least time of a run of the program if its instructions run one after another."""
    return sum(roof.roof_ns * roof.row.runs for roof in roofs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """Share of a device's peak that a program's matrix products used, over a measured time.

    ``flops / (time * peak)``, each kind of product against its own peak, as PaLM defines both (Chowdhery et al.
    2022, appendix B). Between 0 and 1 unless the time is not that of the whole program.
    """

    mfu: float
    """Model FLOPs: without what ``jax.checkpoint`` computes again."""
    hfu: float
    """Hardware FLOPs: everything that ran."""
    exact: bool
    """False: at least this much; some arithmetic or a trip count is not known."""


def utilization(cost: ModuleCost, device: Device, time_ns: float) -> Utilization | None:
    """MFU and HFU of one run of a module that took ``time_ns``; ``None`` without time, products or their peaks."""
    if time_ns <= 0:
        return None
    phases: Mapping[Phase, Cost] = cost.phases
    every = products_ns(cost.total, device)
    again = products_ns(phases["recompute"], device) if "recompute" in phases else 0.0
    if not every or again is None:
        return None
    return Utilization(mfu=(every - again) / time_ns, hfu=every / time_ns, exact=cost.total.exact)
