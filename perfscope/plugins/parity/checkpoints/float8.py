"""float8 values and the bytes that hold them, by the encodings of https://arxiv.org/abs/2209.05433.

``float8_e4m3fn`` has no infinity and one NaN per sign, ``float8_e5m2`` is a float16 cut to 8 bits.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

EXPONENT_BITS = {"float8_e4m3fn": 4, "float8_e5m2": 5}
_SIGN = 0x80


@lru_cache
def values(dtype: str) -> np.ndarray:
    """The values of all 256 bytes, float32."""
    code = np.arange(256)
    mantissa_bits = 7 - EXPONENT_BITS[dtype]
    bias = 2 ** (EXPONENT_BITS[dtype] - 1) - 1
    exponent, mantissa = (code & 0x7F) >> mantissa_bits, (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    magnitude = np.where(exponent, np.ldexp(1 + mantissa, exponent - bias), np.ldexp(mantissa, 1 - bias))
    if dtype == "float8_e4m3fn":
        magnitude[(code & 0x7F) == 0x7F] = np.nan
    else:
        top = exponent == 2 ** EXPONENT_BITS[dtype] - 1
        magnitude[top] = np.where(mantissa[top] == 0, np.inf, np.nan)
    found: np.ndarray = np.where(code & _SIGN, -magnitude, magnitude).astype(np.float32)
    found.setflags(write=False)
    return found


def codes(array: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes of the nearest values, ties to even. Values too large become infinite, or NaN in ``float8_e4m3fn``."""
    known = values(dtype)[:_SIGN]
    finite = known[np.isfinite(known)].astype(np.float64)
    magnitude = np.abs(np.asarray(array, np.float64))
    above = np.minimum(np.searchsorted(finite, magnitude), len(finite) - 1)
    below = np.maximum(above - 1, 0)
    down, up = magnitude - finite[below], finite[above] - magnitude
    nearest = np.where((down < up) | ((down == up) & (below % 2 == 0)), below, above)
    step = finite[-1] - finite[-2]
    overflow = magnitude >= finite[-1] + step / 2  # the last value is even in e4m3fn and odd in e5m2
    if dtype == "float8_e4m3fn":
        overflow = magnitude > finite[-1] + step / 2
    nearest = np.where(overflow, len(finite), nearest)  # the next code: infinity, or NaN
    nearest = np.where(np.isnan(magnitude), _SIGN - 1, nearest)
    return (nearest | np.where(np.signbit(array), _SIGN, 0)).astype(np.uint8)
