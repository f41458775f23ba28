"""Selection of counted values of a tensor, and the number of counts."""

from __future__ import annotations

from perfscope.plugins.numerics.document import FORMATS

MOST_COUNTED = 1 << 20
"""Most counted values of a tensor. All values are used for the smallest and largest one."""
COUNTS = 1 + 3 * len(FORMATS)
"""Values that are 0, and three counts per format."""


def distance(size: int) -> int:
    """Distance between counted values: a prime, so that they do not fall repeatedly on the same axis position."""
    least = -(-size // MOST_COUNTED)
    while any(least % divisor == 0 for divisor in range(2, int(least**0.5) + 1)):
        least += 1
    return least
