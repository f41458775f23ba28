"""Microseconds of a trace to integer nanoseconds, exactly.

A float64 holds three decimals of a microsecond exactly up to 2**43 us (its step there is below
1 ns, so rounding the fraction gives the written digits back). Epoch microseconds (1.7e15) have a
step of 0.25 us: those are converted from their decimal text instead.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

import numpy as np
import numpy.typing as npt

EXACT_BELOW_US = 2.0**43
"""Largest time in us whose three decimals a float64 holds."""

LARGEST_NS = 2**62
"""Beyond this a time is an overflow of the profiler, not a time."""


def floats_to_ns(us: npt.NDArray[np.float64]) -> npt.NDArray[np.int64] | None:
    """us as float to ns, shape (n,); None if a float could not hold the digits that were written."""
    if not (np.abs(us) < EXACT_BELOW_US).all():  # also false for nan
        return None
    whole = np.floor(us)
    return whole.astype(np.int64) * 1000 + np.rint((us - whole) * 1000).astype(np.int64)


def text_to_ns(text: bytes | str) -> int | None:
    """Decimal text of us to ns, halves to even; None if it is no finite number or overflows."""
    written = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    whole, _, fraction = written.partition(".")
    if whole.isdigit() and len(whole) < 17 and len(fraction) <= 3 and (fraction.isdigit() or not fraction):
        return int(whole) * 1000 + int((fraction + "000")[:3])
    try:
        value = (Decimal(written) * 1000).to_integral_value(ROUND_HALF_EVEN)
    except ArithmeticError:  # no number, or an exponent beyond any number
        return None
    if not value.is_finite() or abs(value) >= LARGEST_NS:
        return None
    return int(value)
