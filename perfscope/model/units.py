"""Units as types, and how numbers are shown. Times are integer nanoseconds everywhere."""

from __future__ import annotations

from typing import NewType

Ns = NewType("Ns", int)
"""A time or a duration in integer nanoseconds."""

Bytes = NewType("Bytes", int)
"""A number of bytes."""

Flops = NewType("Flops", int)
"""A number of floating-point operations (a multiply-add counts as two)."""

_TIME_STEPS = ((3_600_000_000_000, "h"), (1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"))
_COUNT_STEPS = ((10**18, "E"), (10**15, "P"), (10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_BYTE_STEPS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def format_ns(value: int | float) -> str:
    """``41_200_000`` -> ``'41.2 ms'``: three significant digits, the unit in the text."""
    for size, unit in _TIME_STEPS:
        if abs(value) >= size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{value:.0f} ns"


def format_bytes(value: int | float) -> str:
    """``2_040_109_465`` -> ``'1.90 GiB'``, binary prefixes."""
    for size, unit in _BYTE_STEPS:
        if abs(value) >= size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{value:.0f} B"


def format_share(part: int | float, whole: int | float) -> str:
    """``part`` of ``whole`` in percent; a whole of zero has no share and shows as ``'-'``."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


def format_count(value: int | float) -> str:
    """``41_200_000`` -> ``'41.2 M'``: three significant digits, decimal prefixes, for FLOPs and their like."""
    for size, unit in _COUNT_STEPS:
        if abs(value) >= size:
            return f"{_three_digits(value / size)} {unit}"
    return f"{value:.0f}"


def ordinal(number: int) -> str:
    """``3`` -> ``'3rd'``."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"
