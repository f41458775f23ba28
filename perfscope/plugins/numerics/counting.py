"""Which values of a tensor are counted, and how many numbers that gives."""

from __future__ import annotations

from perfscope.plugins.numerics.document import FORMATS

MOST_COUNTED = 1 << 20
"""Values of a tensor that are counted. All are looked at for the smallest and largest one."""
COUNTS = 1 + 3 * len(FORMATS)
"""Values that are 0, and three counts of each format."""


def distance(size: int) -> int:
    """Between values that are counted: prime, so that it falls on no axis of the tensor again and again."""
    least = -(-size // MOST_COUNTED)
    while any(least % divisor == 0 for divisor in range(2, int(least**0.5) + 1)):
        least += 1
    return least
