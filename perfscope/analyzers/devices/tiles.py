"""How well the tiles of a matrix product fill a device: whole waves of tiles over the cores, whole tiles of a unit."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct


class Sizes(Struct, frozen=True, kw_only=True):
    """A product ``[batch, rows, inner] x [batch, inner, columns]``.

    Of attention: ``batch`` sequences times heads, ``rows`` queries, ``columns`` keys, ``inner`` elements of a head.
    """

    batch: int
    rows: int
    columns: int
    inner: int

    @property
    def flops(self) -> int:
        """Two for each multiply-add."""
        return 2 * self.batch * self.rows * self.columns * self.inner


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


def product_sizes(left: Sequence[int], right: Sequence[int]) -> Sizes | None:
    """Of ``[.., rows, inner] x [.., inner, columns]``; ``None`` for vectors and for groups that share a dimension."""
    if len(left) != len(right) or len(left) < 2 or left[-1] != right[-2]:
        return None
    return Sizes(batch=math.prod(left[:-2]), rows=left[-2], columns=right[-1], inner=left[-1])
