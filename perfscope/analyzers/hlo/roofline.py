"""Rooflines of compiled programs: the shortest time of each instruction on a device and its limit; MFU and HFU.

Formulas and peaks are in ``devices/roofline.py``. Modelled; only ``measured_ns`` comes from a trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction

from msgspec import Struct

from perfscope.analyzers.devices import Device, Roof, bytes_ns, flops_ns, link_ns, vector_ns
from perfscope.analyzers.hlo.cost.module import InstructionCost, ModuleCost, hlo_costs
from perfscope.analyzers.hlo.cost.types import Cost, Phase
from perfscope.analyzers.hlo.time import HloTime, InstructionTime, hlo_time
from perfscope.model.trace import Trace


class InstructionRoof(Roof, frozen=True, kw_only=True):
    """The roof of one run of an instruction. Times in ns."""

    row: InstructionCost
    measured_ns: float | None = None
    """Mean of its runs in a trace; ``None`` without runs."""

    @property
    def headroom_ns(self) -> float | None:
        """Measured time beyond the roof in all its runs: the most that a perfect kernel would save.

        It is 0 if the instruction was faster than the roof, because its data came from a cache, and None if it was not
        measured, or if the bound or the number of runs is unknown.
        """
        if self.measured_ns is None or self.bound == "unknown" or not self.row.runs_exact:
            return None
        return max(0.0, self.measured_ns - self.roof_ns) * self.row.runs

    @property
    def share_of_roof(self) -> float | None:
        """Roof divided by measured time: 1 is perfect, above 1 a cache helped. None as for ``headroom_ns``."""
        if not self.measured_ns or self.bound == "unknown":
            return None
        return self.roof_ns / self.measured_ns


def products_ns(cost: Cost, device: Device) -> float | None:
    """Return the time of all matrix products of a cost at the device's peaks; ``None`` if a peak is unknown."""
    total = 0.0
    for product, flops in cost.products.items():
        time = flops_ns(device, flops, product.dtype, product.precision)
        if time is None:
            return None
        total += time
    return total


def compute_ns(cost: Cost, device: Device) -> float | None:
    """Return the shortest time of a cost's arithmetic; ``None`` if some of it, or a peak, is unknown.

    Matrix products and other arithmetic run in parallel on separate units, so the longer time counts. Other arithmetic
    runs at the ``float32`` peak; for a device that states none (TPU) it is omitted, so the time remains a lower bound.
    Transcendentals count as one FLOP each, far less than they take.
    """
    products = products_ns(cost, device)
    if cost.unknown or products is None:
        return None
    rest = cost.flops - sum(cost.products.values()) + cost.transcendentals
    return max(products, vector_ns(device, rest))


def roof_of(row: InstructionCost, device: Device, measured_ns: float | None = None) -> InstructionRoof:
    """The roof of one instruction on a device."""
    cost = row.once
    link = link_ns(device, cost.wire_bytes) if cost.wire_bytes else 0.0
    return InstructionRoof(
        row=row,
        compute_ns=compute_ns(cost, device),
        memory_ns=bytes_ns(device, cost.bytes),
        link_ns=None if cost.host_bytes else link,
        measured_ns=measured_ns,
    )


def program_roofs(
    cost: ModuleCost, device: Device, measured_ns: Mapping[tuple[str, str], float] | None = None
) -> tuple[InstructionRoof, ...]:
    """Return the roofs of all launched instructions, in the order of the module.

    ``measured_ns``: mean time of one run, by computation and instruction, for measured instructions.
    """
    times = measured_ns or {}
    return tuple(
        roof_of(row, device, times.get((row.computation, row.instruction.name))) for row in cost.launched if row.runs
    )


def measured_roofline(trace: Trace, device: Device) -> tuple[tuple[InstructionRoof, ...], ...]:
    """Return the roofs of every program in ``trace.hlo``, in the same order, with the times in the trace.

    ``device`` is an argument because a trace of XLA's CPU backend has no device with a known peak.
    """
    times = trace.fact(run_times)
    return tuple(program_roofs(cost, device, times[index]) for index, cost in enumerate(trace.fact(hlo_costs)))


def run_times(trace: Trace) -> tuple[Mapping[tuple[str, str], float], ...]:
    """Return the mean measured ns of one run of each instruction, by computation and name.

    One mapping per ``trace.hlo``.

    No device is needed, because rates need no peaks.
    """
    return tuple(_run_times(trace.fact(hlo_time), index, cost) for index, cost in enumerate(trace.fact(hlo_costs)))


def _run_times(times: HloTime, index: int, cost: ModuleCost) -> dict[tuple[str, str], float]:
    """Return the mean time of one run of each instruction of a program, by computation and instruction.

    A run may consist of several pieces of work (kernels of one library call). Their number is pieces divided by runs,
    rounded, because a trace may begin or end inside an execution. In a loop of unknown length, a piece counts as a run.
    """
    executions = agreed_executions(times, index, cost) or Fraction(1)
    return {
        key: time.mean_ns * (1 if runs is None else max(1, round(time.calls / (executions * runs))))
        for key, (time, runs) in _timed(times, index, cost).items()
    }


def agreed_executions(times: HloTime, index: int, cost: ModuleCost) -> Fraction | None:
    """Return the number of runs of a program on all devices: the ratio of pieces to runs that most instructions have.

    ``index``: of the module in ``Trace.hlo``. ``None`` if no instruction outside of loops of unknown length was
    measured.
    """
    agreed = Counter(
        Fraction(time.calls, runs) for time, runs in _timed(times, index, cost).values() if runs is not None
    )
    return min(agreed, key=lambda ratio: (-agreed[ratio], ratio), default=None)


def _timed(times: HloTime, index: int, cost: ModuleCost) -> dict[tuple[str, str], tuple[InstructionTime, int | None]]:
    """Return the measured time of each instruction, with its runs in one run of the program; None if unknown."""
    result = {}
    for row in cost.launched:
        time = times.by_key.get((index, row.instruction.name))
        if time is not None and time.computation == row.computation and row.runs:
            result[row.computation, row.instruction.name] = (time, row.runs if row.runs_exact else None)
    return result


def roof_sum_ns(roofs: Iterable[InstructionRoof]) -> float:
    """Return the shortest time of one run of the program if its instructions run one after another."""
    return sum(roof.roof_ns * roof.row.runs for roof in roofs)


class Utilization(Struct, frozen=True, kw_only=True):
    """Share of a device's peak that a program's matrix products reached, over a measured time.

    ``flops / (time * peak)``, each kind of product relative to its own peak, as PaLM defines both (Chowdhery et al.
    2022, appendix B). Between 0 and 1 unless the time is not that of the whole program.
    """

    mfu: float
    """Model FLOPs utilization, without the recomputation of ``jax.checkpoint``."""
    hfu: float
    """Hardware FLOPs utilization, with everything that ran."""
    exact: bool
    """False if the values are lower bounds, because some arithmetic or a trip count is unknown."""


def utilization(cost: ModuleCost, device: Device, time_ns: float) -> Utilization | None:
    """Return MFU and HFU of one run of a module that took ``time_ns``.

    ``None`` without time, products or their peaks.
    """
    if time_ns <= 0:
        return None
    phases: Mapping[Phase, Cost] = cost.phases
    every = products_ns(cost.total, device)
    again = products_ns(phases["recompute"], device) if "recompute" in phases else 0.0
    if not every or again is None:
        return None
    return Utilization(mfu=(every - again) / time_ns, hfu=every / time_ns, exact=cost.total.exact)
