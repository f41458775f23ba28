"""Time of one run of an instruction on a device as a range; collectives are elsewhere.

From measured kernels of its category (``efficiency.py``), else ``max(arithmetic, bytes)``, but no shorter than a
kernel:
at the peaks for the low end, at assumed shares of them for the high end. The low end reads recently written data from
the shared cache.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.devices import NS, Bound, Device, Roof, Sizes, bytes_ns, padded_share, vector_ns, wave_share
from perfscope.analyzers.hlo import (
    Computation,
    Cost,
    HloModule,
    Instruction,
    ModuleCost,
    Shape,
    dims_of,
    fused,
    products_ns,
    sources,
)
from perfscope.analyzers.predict.assumptions import Factors, is_strided
from perfscope.analyzers.predict.curve import Category
from perfscope.analyzers.predict.efficiency import Work as KernelWork
from perfscope.analyzers.predict.efficiency import usual_range
from perfscope.analyzers.predict.spans import Range, ns_range

_UNITS = {"TPU v6e": 256, "TPU7x (one of two)": 256}
_UNIT = 128
"""Rows and columns of a TPU's matrix unit (How to Scale Your Model, Austin et al. 2025)."""

_SCALAR = 64
"""Largest size in bytes at which an instruction that yields one number works on single numbers."""

_CATEGORIES: tuple[tuple[frozenset[str], Category], ...] = (
    (frozenset({"gather", "scatter", "dynamic-slice", "dynamic-update-slice", "sort"}), "gather"),
    (frozenset({"concatenate"}), "join"),
    (frozenset({"reduce", "reduce-window", "select-and-scatter"}), "reduction"),
)
"""By opcode: the first one that an instruction or its fusion contains."""


def sizes_of(module: HloModule, computation: Computation, instruction: Instruction) -> Sizes | None:
    """Sizes of the largest product in an instruction; ``None`` if unknown (convolutions, unknown calls)."""
    every = list(_sizes(module, computation, instruction))
    return max(every, key=lambda sizes: sizes.flops, default=None)


def _sizes(module: HloModule, computation: Computation, instruction: Instruction) -> Iterator[Sizes]:
    if instruction.opcode != "fusion":
        sizes = _of(computation, instruction)
        if sizes is not None:
            yield sizes
        return
    holders = {id(instruction): holder for holder in _held(module, instruction) for instruction in holder.instructions}
    for inner in fused(module, instruction):
        holder = holders.get(id(inner))
        sizes = None if holder is None else _of(holder, inner)
        if sizes is not None:
            yield sizes


def _held(module: HloModule, instruction: Instruction) -> Iterator[Computation]:
    for name in instruction.called:
        body = module.computations.get(name)
        if body is not None:
            yield body
            for one in body.instructions:
                if one.opcode == "fusion":
                    yield from _held(module, one)


def _of(computation: Computation, instruction: Instruction) -> Sizes | None:
    if instruction.opcode == "dot" and len(instruction.operands) >= 2:
        lhs, rhs = (computation.by_name[name].shape for name in instruction.operands[:2])
        contracting = dims_of(instruction.attributes.get("lhs_contracting_dims", ""))
        batch = dims_of(instruction.attributes.get("lhs_batch_dims", ""))
        return _product(lhs, rhs, contracting, batch)
    if (
        instruction.opcode == "custom-call"
        and (instruction.custom_call_target or "").startswith("__cublas")
        and len(instruction.operands) >= 2
    ):
        config = instruction.backend_config.get("gemm_backend_config", instruction.backend_config)
        numbers = config.get("dot_dimension_numbers") if isinstance(config, dict) else None
        if isinstance(numbers, dict):
            lhs, rhs = (computation.by_name[name].shape for name in instruction.operands[:2])
            return _product(
                lhs, rhs, _ints(numbers, "lhs_contracting_dimensions"), _ints(numbers, "lhs_batch_dimensions")
            )
    return None


def _ints(numbers: dict[str, object], key: str) -> tuple[int, ...]:
    result = numbers.get(key)
    texts = [str(one) for one in result] if isinstance(result, list) else []
    return tuple(int(one) for one in texts if one.isdecimal())


def _product(lhs: Shape, rhs: Shape, contracting: tuple[int, ...], batch: tuple[int, ...]) -> Sizes | None:
    if any(axis >= len(lhs.dims) for axis in (*contracting, *batch)) or lhs.parts or rhs.parts:
        return None
    inner = math.prod(lhs.dims[axis] for axis in contracting)
    groups = math.prod(lhs.dims[axis] for axis in batch)
    if not inner or not groups:
        return None
    return Sizes(
        batch=groups,
        rows=max(1, lhs.elements // (inner * groups)),
        columns=max(1, rhs.elements // (inner * groups)),
        inner=inner,
    )


class KernelTime(Struct, frozen=True, kw_only=True):
    """One run of an instruction."""

    time: Range
    bound: Bound
    """Dominant part of the high end. ``launch``: the shortest time of a kernel."""
    known: bool
    """False: part of its arithmetic, or its peak, is unknown; the time is a lower bound from the rest."""


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
    """Time of one run of an instruction other than a collective.

    ``cached``: bytes that may still be in the shared cache. ``blocks``: of its grid, if known.
    """
    products = products_ns(cost, device)
    known = not cost.unknown and products is not None
    rest = cost.flops - sum(cost.products.values())
    fill = 1.0 if blocks is None or not device.cores else min(1.0, blocks / device.cores)
    vector = _slow_vector_ns(device, factors, rest, cost.transcendentals) / fill
    filled = factors.matrix * _filled(module, computation, instruction, device, factors) if products else 1.0
    near = min(cached, cost.bytes)
    reached = (factors.strided if is_strided(module, instruction) else factors.memory) * fill
    fastest, slowest = factors.host_link
    low = Roof(
        compute_ns=max(products or 0.0, vector_ns(device, rest + cost.transcendentals)),
        memory_ns=bytes_ns(device, cost.bytes - near) + bytes_ns(device, near) / factors.cache_speedup,
        host_ns=cost.host_bytes * NS / fastest,
    )
    high = Roof(
        compute_ns=max((products or 0.0) / filled, vector),
        memory_ns=bytes_ns(device, cost.bytes) / reached,
        host_ns=cost.host_bytes * NS / slowest,
    )
    shortest, small = factors.scalar if instruction.shape.elements <= 1 and cost.bytes <= _SCALAR else factors.kernel
    bound: Bound = "unknown" if not known else "launch" if high.roof_ns < small else high.bound
    time = between(low, high, (shortest, small))
    if known and bound != "launch" and not cost.host_bytes:
        work = _work(module, computation, instruction, cost, products or 0.0)
        time = _as_measured(device, work, time, near=round(near - near / factors.cache_speedup), fill=fill) or time
        time = ns_range(max(time.low, low.compute_ns or 0.0), max(time.high, vector))
    return KernelTime(time=time, bound=bound, known=known)


def _work(
    module: HloModule, computation: Computation, instruction: Instruction, cost: Cost, products: float
) -> KernelWork:
    opcodes = {one.opcode for one in fused(module, instruction)}
    target = instruction.custom_call_target or ""
    category: Category = "strided" if is_strided(module, instruction) else "elementwise"
    category = next((found for names, found in _CATEGORIES if names & opcodes), category)
    if cost.products:
        category = "convolution" if "convolution" in opcodes or "conv" in target else "product"
        if "fmha" in target:
            category = "attention backward" if "ackward" in target else "attention"
    dtypes = Counter[str]()
    for product, flops in cost.products.items():
        dtypes["float32" if product.precision == "highest" else product.dtype] += flops
    return KernelWork(
        category=category,
        bytes=cost.bytes,
        flops=sum(cost.products.values()),
        dtype=dtypes.most_common(1)[0][0] if dtypes else "",
        sizes=sizes_of(module, computation, instruction) if category == "product" else None,
        ideal_ns=products,
    )


def _as_measured(device: Device, work: KernelWork, peaks: Range, *, near: int, fill: float) -> Range | None:
    """Time from measured kernels of the category; ``None`` without measurements.

    The curves describe kernels of PyTorch. XLA tunes its products, so these may reach the peak (low end of ``peaks``);
    its fusions may reach the efficiency of an elementwise kernel. ``near``: bytes saved by the cache at the low end.
    ``fill``: share of the cores at work, at the high end.
    """
    slow = usual_range(device, replace(work, bytes=round(work.bytes / fill)))
    fast = usual_range(device, KernelWork(category="elementwise", bytes=work.bytes - near))
    if slow is None or fast is None:
        return None
    return ns_range(peaks.low if work.flops else min(fast.low, slow.low), slow.high)


def between(low: Roof, high: Roof, shortest: tuple[int, int]) -> Range:
    """The range of a kernel: from ``low``, but no shorter than a kernel, to ``high`` plus a launch."""
    return ns_range(max(low.roof_ns, shortest[0]), high.roof_ns + shortest[1])


def _slow_vector_ns(device: Device, factors: Factors, flops: int, transcendentals: int) -> float:
    """Time of arithmetic outside matrix products, at the assumed shares of the vector peak."""
    plain = device.peak_flops.get("float32")
    if plain is None and factors.vector_per_matrix is not None:
        # units of 256 rows have twice the FLOPs of units of 128 with the same vector unit
        share = factors.vector_per_matrix * _UNIT / _UNITS.get(device.name, _UNIT)
        plain = round(device.peak_flops.get("bfloat16", 0) * share)
    return (flops / factors.vector + transcendentals / factors.transcendental) * NS / plain if plain else 0.0


def _filled(
    module: HloModule, computation: Computation, instruction: Instruction, device: Device, factors: Factors
) -> float:
    """Share of the device's matrix units that a product keeps busy; 1 if its sizes are unknown."""
    sizes = sizes_of(module, computation, instruction)
    if sizes is None:
        return 1.0
    if device.vendor == "Google":
        return padded_share(sizes, _UNITS.get(device.name, _UNIT))
    if not device.cores:
        return 1.0
    return wave_share(sizes, tile=factors.tile, cores=device.cores, split=factors.split)


# Bytes that may still be in the shared cache when an instruction reads them: recently written small values.
#
# An upper bound for the low end of a range: it assumes a perfect cache that holds the bytes moved last.


def cached_bytes(computation: Computation, cost: ModuleCost, cache: int | None) -> Mapping[str, int]:
    """By instruction of a computation: bytes that may come from the cache or stay in it.

    If one run of the computation moves no more than the cache holds, all bytes: the next iteration or step finds them.
    """
    if not cache:
        return {}
    moved = {instruction.name: _moved(computation, cost, instruction) for instruction in computation.instructions}
    if sum(moved.values()) <= cache:
        return moved
    result: dict[str, int] = {}
    written: dict[str, int] = {}
    behind = sources(computation)
    so_far = 0
    for instruction in computation.instructions:
        so_far += moved[instruction.name]
        kept = instruction.shape.bytes if instruction.shape.bytes <= cache else 0
        for name in {name for operand in instruction.operands for part in behind[operand] for name, _ in part}:
            size = computation.by_name[name].shape.bytes
            if name in written and so_far - written[name] <= cache:
                kept += size
        result[instruction.name] = min(kept, moved[instruction.name])
        if moved[instruction.name]:
            written[instruction.name] = so_far - moved[instruction.name]
    return result


def _moved(computation: Computation, cost: ModuleCost, instruction: Instruction) -> int:
    row = cost.by_name.get((computation.name, instruction.name))
    return 0 if row is None or row.place != "launched" else row.once.bytes
