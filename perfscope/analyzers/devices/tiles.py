"""How well the tiles of a matrix product fill a device: whole waves of tiles over the cores, whole tiles of a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from perfscope.model.op_flops import product_flops


class Sizes(Struct, frozen=True, kw_only=True):
    """A product ``[batch, rows, inner] x [batch, inner, columns]``.

    For attention: ``batch`` is sequences times heads, ``rows`` queries, ``columns`` keys, ``inner`` elements of a head.
    """

    batch: int
    rows: int
    columns: int
    inner: int

    @property
    def flops(self) -> int:
        """FLOPs of the product."""
        return product_flops(self.batch * self.rows * self.columns, self.inner)


class Computation(Struct, frozen=True, kw_only=True):
    """Arithmetic of an op or a kernel, and the bytes that it moves through device memory."""

    bytes: int
    flops: int = 0
    """FLOPs of matrix products; two per multiply-add."""
    dtype: str = ""
    """dtype of the operands of its products; without products, of its first tensor. ``float32``: without TF32."""
    sizes: Sizes | None = None
    """Sizes of the largest product; for attention, of queries, keys and heads. None: unknown, or no product."""


def wave_share(sizes: Sizes, *, tile: tuple[int, int], cores: int, split: int) -> float:
    """Return the share of the cores' time with work, 0 to 1: tiles in whole waves, partial tiles counted as full.

    ``split``: length from which a contraction is divided among cores that would have no tile (0: never). NVIDIA,
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
    """Return the smallest tile size that holds ``size`` rows: a power of two, at least 16."""
    return max(16, 1 << max(0, size - 1).bit_length())


def padded_share(sizes: Sizes, unit: int) -> float:
    """Return the share of a systolic unit's work without padding: columns and inner in whole units, rows in eights."""
    return math.prod(
        size / (-(-size // whole) * whole)
        for size, whole in ((sizes.rows, 8), (sizes.columns, unit), (sizes.inner, unit))
    )


def product_sizes(left: Sequence[int], right: Sequence[int]) -> Sizes | None:
    """Return the sizes of ``[.., rows, inner] x [.., inner, columns]``; ``None`` for vectors and grouped dimensions."""
    if len(left) != len(right) or len(left) < 2 or left[-1] != right[-2]:
        return None
    return Sizes(batch=math.prod(left[:-2]), rows=left[-2], columns=right[-1], inner=left[-1])
