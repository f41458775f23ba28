"""The time of one run of one instruction on a device as a range, collectives aside.

``max(arithmetic, bytes)`` and never shorter than a kernel: at the peaks for the low end, at the assumed shares of them
for the high end. The low end reads what was written just before out of the shared cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from perfscope.analyzers.devices import Device
from perfscope.analyzers.devices.roofline import NS, Bound, Roof, bytes_ns, vector_ns
from perfscope.analyzers.hlo.cost.module import ModuleCost
from perfscope.analyzers.hlo.cost.products import dims_of
from perfscope.analyzers.hlo.cost.types import Cost
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction, Shape
from perfscope.analyzers.hlo.program import fused
from perfscope.analyzers.hlo.roofline import products_ns
from perfscope.analyzers.hlo.views import sources
from perfscope.analyzers.predict.assumptions import Factors, is_strided
from perfscope.analyzers.predict.spans import Range, ns_range

# How well the tiles of a matrix product fill a device: whole waves of tiles over the cores, whole tiles of a unit.


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """A product ``[batch, rows, inner] x [batch, inner, columns]``."""

    batch: int
    rows: int
    columns: int
    inner: int

    @property
    def flops(self) -> int:
        """Two for each multiply-add."""
        return 2 * self.batch * self.rows * self.columns * self.inner


def sizes_of(module: HloModule, computation: Computation, instruction: Instruction) -> Sizes | None:
    """Of the largest product an instruction holds; ``None`` if none can be told (convolutions, unknown calls)."""
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


def wave_share(sizes: Sizes, *, tile: tuple[int, int], cores: int, split: int) -> float:
    """Share of the cores' time that holds work, 0 to 1: tiles in whole waves, edges of tiles counted as work.

    ``split``: a contraction at least this long is divided among cores that would have no tile (0: never). NVIDIA,
    'Matrix Multiplication Background User's Guide', tile and wave quantization.
    """
    tall, wide = tile
    if sizes.rows < sizes.columns:
        tall, wide = min(tile), max(tile)
    rows, columns = min(tall, _unit(sizes.rows)), min(wide, _unit(sizes.columns))
    across, down = -(-sizes.columns // columns), -(-sizes.rows // rows)
    edges = (sizes.rows * sizes.columns) / (down * rows * across * columns)
    tiles = sizes.batch * across * down
    if split and tiles < cores:
        tiles *= max(1, min(cores // tiles, sizes.inner // split))
    waves = -(-tiles // cores)
    return edges * tiles / (waves * cores)


def _unit(size: int) -> int:
    """The smallest tile, a power of two of 16 at least, that holds so many rows."""
    return max(16, 1 << max(0, size - 1).bit_length())


def padded_share(sizes: Sizes, unit: int) -> float:
    """Share of a systolic unit's work that is no padding: columns and contraction in whole units, rows in eights."""
    return math.prod(
        size / (-(-size // whole) * whole)
        for size, whole in ((sizes.rows, 8), (sizes.columns, unit), (sizes.inner, unit))
    )


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
    return KernelTime(time=between(low, high, (shortest, small)), bound=bound, known=known)


def between(low: Roof, high: Roof, shortest: tuple[int, int]) -> Range:
    """The time of a kernel: from ``low``, but never shorter than a kernel is, to ``high`` behind the launch of one."""
    return ns_range(max(low.roof_ns, shortest[0]), high.roof_ns + shortest[1])


def _slow_vector_ns(device: Device, factors: Factors, flops: int, transcendentals: int) -> float:
    """Time of arithmetic outside of matrix products, in the assumed shares of the vector peak."""
    plain = device.peak_flops.get("float32")
    if plain is None and factors.vector_per_matrix is not None:
        # units of 256 rows make twice as many FLOPs beside the same vector unit as those of 128
        share = factors.vector_per_matrix * _UNIT / _UNITS.get(device.name, _UNIT)
        plain = round(device.peak_flops.get("bfloat16", 0) * share)
    return (flops / factors.vector + transcendentals / factors.transcendental) * NS / plain if plain else 0.0


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


# Bytes that may still lie in a device's shared cache when an instruction reads them: small values just written.
#
# An upper bound for the low end of a range: the cache is taken as perfect, the last bytes moved as those it holds.


def cached_bytes(computation: Computation, cost: ModuleCost, cache: int | None) -> Mapping[str, int]:
    """Of the bytes of each instruction of a computation, those that may come from or stay in the cache.

    Where one run of the computation moves no more than the cache holds, all of it: the next turn, or the next step,
    finds it there.
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
