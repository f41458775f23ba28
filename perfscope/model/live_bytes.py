"""Live bytes over positions: the one sweep that turns blocks of memory into a curve and a peak.

Positions are whatever the caller counts: nanoseconds, allocator events, instructions, ops.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Int64 = npt.NDArray[np.int64]

NEVER = np.iinfo(np.int64).max
"""Position of an event that does not occur: the end of a block that is never freed."""


class Curve(Struct, frozen=True, kw_only=True):
    """A step function: ``bytes[i]`` holds from ``positions[i]`` up to the next one. Shapes (n,), int64, sorted."""

    positions: Int64
    bytes: Int64

    def at(self, positions: Int64, *, before: bool = False) -> Int64:
        """Bytes at each position (``before``: right before it), 0 before the begin of the curve; shape of the input."""
        index = np.searchsorted(self.positions, positions, side="left" if before else "right")
        values: Int64 = np.concatenate(([0], self.bytes))[index]
        return values

    def peak(self) -> tuple[int, int]:
        """``(position, bytes)`` of the first maximum; ``(0, 0)`` of an empty curve."""
        if not len(self.bytes):
            return 0, 0
        index = int(np.argmax(self.bytes))
        return int(self.positions[index]), int(self.bytes[index])

    def plus(self, starts: Int64, ends: Int64, sizes: Int64) -> Curve:
        """The curve with further blocks; negative sizes remove bytes."""
        more = curve(starts, ends, sizes)
        positions = np.union1d(self.positions, more.positions)
        return Curve(positions=positions, bytes=self.at(positions) + more.at(positions))


def curve(starts: Int64, ends: Int64, sizes: Int64) -> Curve:
    """Bytes of the blocks that are live, of each from its start up to its end (`NEVER`: not freed). Shapes (blocks,).

    At one position frees go before allocations. A block that ends where it starts counts nowhere.
    """
    freed = ends != NEVER
    positions, inverse = np.unique(np.concatenate((starts, ends[freed])), return_inverse=True)
    change = np.zeros(len(positions), np.int64)
    np.add.at(change, inverse, np.concatenate((sizes, -sizes[freed])))
    return Curve(positions=positions.astype(np.int64), bytes=np.cumsum(change))


def peak(starts: Int64, ends: Int64, sizes: Int64) -> tuple[int, int]:
    """``(position, bytes)`` of the first moment at which most bytes are live; see `curve`."""
    return curve(starts, ends, sizes).peak()
