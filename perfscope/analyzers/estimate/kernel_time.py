"""The time of one run of one instruction on a device as a range, collectives aside.

``max(arithmetic, bytes)`` and never shorter than a kernel: at the peaks for the low end, at the assumed shares of them
for the high end. The low end reads what was written just before out of the shared cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from perfscope.analyzers.estimate.access import is_strided
from perfscope.analyzers.estimate.assumptions import Factors
from perfscope.analyzers.estimate.product_tiles import padded_share, sizes_of, wave_share
from perfscope.analyzers.estimate.spans import Range, ns_range
from perfscope.analyzers.facts.hlo_roofline import NS, products_ns
from perfscope.analyzers.hardware import Device
from perfscope.analyzers.hlo.cost_types import Cost
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction

Bound = Literal["compute", "memory", "link", "host", "launch", "unknown"]

_UNITS = {"TPU v6e": 256, "TPU7x (one of two)": 256}
_UNIT = 128
"""Rows and columns of a TPU's matrix unit (How to Scale Your Model, Austin et al. 2025)."""


_SCALAR = 64
"""Bytes up to which an instruction that yields one number works on single numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTime:
    """One run of an instruction."""

    time: Range
    bound: Bound
    """What the high end is made of. ``launch``: the shortest a kernel takes."""
    known: bool
    """False: some of its arithmetic, or the peak for it, is not known; the time is that of the rest, at the least."""


def kernel_time(
    module: HloModule,
    computation: Computation,
    instruction: Instruction,
    cost: Cost,
    device: Device,
    factors: Factors,
    *,
    cached: int = 0,
    blocks: int | None = None,
) -> KernelTime:
    """One run of an instruction that is no collective.

    ``cached``: of its bytes, those that may still lie in the shared cache. ``blocks``: of its grid, where known.
    """
    products = products_ns(cost, device)
    known = not cost.unknown and products is not None
    rest = cost.flops - sum(cost.products.values())
    plain = device.peak_flops.get("float32")
    if plain is None and factors.vector_per_matrix is not None:
        # units of 256 rows make twice as many FLOPs beside the same vector unit as those of 128
        share = factors.vector_per_matrix * _UNIT / _UNITS.get(device.name, _UNIT)
        plain = round(device.peak_flops.get("bfloat16", 0) * share)
    low_rest = (rest + cost.transcendentals) * NS / plain if plain and "float32" in device.peak_flops else 0.0
    high_rest = 0.0
    if plain:
        high_rest = (rest / factors.vector + cost.transcendentals / factors.transcendental) * NS / plain
    fill = 1.0 if blocks is None or not device.cores else min(1.0, blocks / device.cores)
    high_products = 0.0
    if products:
        high_products = products / (factors.matrix * _filled(module, computation, instruction, device, factors))
    memory = cost.bytes * NS / device.memory_bandwidth
    low_memory = (cost.bytes - min(cached, cost.bytes)) * NS / device.memory_bandwidth
    if cached:
        low_memory += min(cached, cost.bytes) * NS / (device.memory_bandwidth * factors.cache_speedup)
    reached = factors.strided if is_strided(module, instruction) else factors.memory
    high_memory = memory / (reached * fill)
    fastest, slowest = factors.host_link
    low_host, high_host = cost.host_bytes * NS / fastest, cost.host_bytes * NS / slowest
    compute_high = max(high_products, high_rest / fill)
    shortest, small = factors.scalar if instruction.shape.elements <= 1 and cost.bytes <= _SCALAR else factors.kernel
    slow = max(compute_high, high_memory, high_host)
    return KernelTime(
        time=ns_range(max(products or 0.0, low_rest, low_memory, low_host, shortest), slow + small),
        bound=_bound(compute_high, high_memory, high_host, small, known=known),
        known=known,
    )


def _bound(compute: float, memory: float, host: float, small: float, *, known: bool) -> Bound:
    if not known:
        return "unknown"
    longest = max(compute, memory, host)
    if longest < small:
        return "launch"
    if longest == host:
        return "host"
    return "compute" if longest == compute else "memory"


def _filled(
    module: HloModule, computation: Computation, instruction: Instruction, device: Device, factors: Factors
) -> float:
    """Share of the device's matrix units that a product keeps busy; 1 where its sizes are not known."""
    sizes = sizes_of(module, computation, instruction)
    if sizes is None:
        return 1.0
    if device.vendor == "Google":
        return padded_share(sizes, _UNITS.get(device.name, _UNIT))
    if not device.cores:
        return 1.0
    return wave_share(sizes, tile=factors.tile, cores=device.cores, split=factors.split)


def without_products(cost: Cost) -> Cost:
    """A cost with nothing but its bytes."""
    return replace(cost, flops=0, transcendentals=0, products={}, unknown=0, wire_bytes=0)
