"""Windows of convolutions and window reductions: which positions fall on the input at all."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache

MAX_WINDOW_STEPS = 1 << 16
"""Window positions that are gone through one by one. Kernels have tens; a batch dimension that the TPU
compiler writes as a window has thousands."""

_FIELD = re.compile(r"(size|stride|pad|lhs_dilate|rhs_dilate)=([-\dx_]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowDim:
    """One dimension of a window, as XLA defines it."""

    size: int
    stride: int = 1
    pad_low: int = 0
    lhs_dilate: int = 1
    """Input elements lie this far apart (holes between them are zero)."""
    rhs_dilate: int = 1
    """Window elements lie this far apart."""


def window_dims(text: str) -> tuple[WindowDim, ...] | None:
    """Dimensions of ``{size=3x3 stride=2x2 pad=1_1x1_1}``; none for blank text, ``None`` if it cannot be read."""
    fields = {key: value.split("x") for key, value in _FIELD.findall(text)}
    sizes = fields.get("size", [])
    try:
        return tuple(
            WindowDim(
                size=int(size),
                stride=int(fields["stride"][at]) if "stride" in fields else 1,
                pad_low=int(fields["pad"][at].partition("_")[0]) if "pad" in fields else 0,
                lhs_dilate=int(fields["lhs_dilate"][at]) if "lhs_dilate" in fields else 1,
                rhs_dilate=int(fields["rhs_dilate"][at]) if "rhs_dilate" in fields else 1,
            )
            for at, size in enumerate(sizes)
        )
    except (ValueError, IndexError):
        return None


@lru_cache(maxsize=4096)
def valid_positions(window: WindowDim, inputs: int, outputs: int) -> int | None:
    """Pairs of (output, window element) that fall on an input element, not on padding or between two of them.

    Output ``o`` and window element ``k`` meet input position ``o*stride + k*rhs_dilate - pad_low`` of the
    dilated input. ``None`` if there are too many window elements to go through.
    """
    if window.size > MAX_WINDOW_STEPS and outputs <= MAX_WINDOW_STEPS:
        # the same pairs, counted the other way round
        swapped = WindowDim(
            size=outputs,
            stride=window.rhs_dilate,
            pad_low=window.pad_low,
            lhs_dilate=window.lhs_dilate,
            rhs_dilate=window.stride,
        )
        return valid_positions(swapped, inputs, window.size)
    if window.size > MAX_WINDOW_STEPS or min(window.stride, window.lhs_dilate, window.rhs_dilate) < 1:
        return None
    last = (inputs - 1) * window.lhs_dilate
    step = window.lhs_dilate // math.gcd(window.stride, window.lhs_dilate)
    found = 0
    for element in range(window.size):
        offset = element * window.rhs_dilate - window.pad_low
        first = _first_on_input(window.stride, window.lhs_dilate, offset)
        if first is None or inputs < 1:
            continue
        low = max(0, -(offset // window.stride))  # o*stride + offset >= 0, rounded up
        high = min(outputs - 1, (last - offset) // window.stride)
        begin = low + (first - low) % step
        if begin <= high:
            found += (high - begin) // step + 1
    return found


def _first_on_input(stride: int, dilate: int, offset: int) -> int | None:
    """Smallest ``o >= 0`` with ``(o*stride + offset) % dilate == 0``; ``None`` if no ``o`` does it."""
    shared = math.gcd(stride, dilate)
    if offset % shared:
        return None
    step = dilate // shared
    if step == 1:
        return 0
    return (-offset // shared) * pow(stride // shared, -1, step) % step
