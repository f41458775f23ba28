"""How well the tiles of a matrix product fill a device: whole waves of tiles over the cores, whole tiles of a unit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from perfscope.analyzers.facts.hlo_program import fused
from perfscope.analyzers.hlo.cost_products import dims_of
from perfscope.analyzers.hlo.module import Computation, HloModule, Instruction, Shape


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
    found = list(_sizes(module, computation, instruction))
    return max(found, key=lambda one: one.flops, default=None)


def _sizes(module: HloModule, computation: Computation, instruction: Instruction) -> Iterator[Sizes]:
    if instruction.opcode != "fusion":
        one = _of(computation, instruction)
        if one is not None:
            yield one
        return
    holders = {id(one): holder for holder in _held(module, instruction) for one in holder.instructions}
    for inner in fused(module, instruction):
        holder = holders.get(id(inner))
        one = None if holder is None else _of(holder, inner)
        if one is not None:
            yield one


def _held(module: HloModule, instruction: Instruction) -> Iterator[Computation]:
    for name in instruction.called:
        body = module.computations.get(name)
        if body is not None:
            yield body
            for one in body.instructions:
                if one.opcode == "fusion":
                    yield from _held(module, one)


def _of(computation: Computation, one: Instruction) -> Sizes | None:
    if one.opcode == "dot" and len(one.operands) >= 2:
        lhs, rhs = (computation.by_name[name].shape for name in one.operands[:2])
        contracting = dims_of(one.attributes.get("lhs_contracting_dims", ""))
        batch = dims_of(one.attributes.get("lhs_batch_dims", ""))
        return _product(lhs, rhs, contracting, batch)
    if one.opcode == "custom-call" and (one.custom_call_target or "").startswith("__cublas") and len(one.operands) >= 2:
        config = one.backend_config.get("gemm_backend_config", one.backend_config)
        numbers = config.get("dot_dimension_numbers") if isinstance(config, dict) else None
        if isinstance(numbers, dict):
            lhs, rhs = (computation.by_name[name].shape for name in one.operands[:2])
            return _product(
                lhs, rhs, _ints(numbers, "lhs_contracting_dimensions"), _ints(numbers, "lhs_batch_dimensions")
            )
    return None


def _ints(numbers: dict[str, object], key: str) -> tuple[int, ...]:
    found = numbers.get(key)
    texts = [str(one) for one in found] if isinstance(found, list) else []
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
