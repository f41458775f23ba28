"""Errors of arrays relative to a reference, and the size that rounding explains.

A sum of n products with rounding errors that are independent and of mean zero has a relative backward error of at most
lambda * sqrt(n) * u with high probability (Higham and Mary 2019, A new approach to probabilistic rounding error
analysis, SIAM J. Sci. Comput. 41(5), A2815-A2835), where u is the unit roundoff. The errors of successive ops add as
independent ones do: r ops that round and reductions of n terms in all add at most

    lambda * sqrt(r * u^2 + n * v^2)

with v the unit roundoff of the accumulator: that of the dtype, and of float32 for 16-bit dtypes, whose products both
frameworks accumulate in float32. The amplification of earlier errors by a model has no formula; it is measured on the
side that the reference belongs to. So the expected error of the other side is: the contribution of its ops since the
last common layer, and `FACTOR` times the error of the first side here, scaled by the ratio of unit roundoffs (or by the
ratio in earlier layers). If the first side is the reference itself, r and n count from the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

DIGITS = {
    "float64": 53,
    "float32": 24,
    "float16": 11,
    "bfloat16": 8,
    "float8_e4m3fn": 4,
    "float8_e5m2": 3,
    "float4_e2m1fn": 2,
}
"""Bits of the significand including the leading one; the unit roundoff is 2 to the negative of that."""
_SMALLEST = {"float64": -1022, "float32": -126, "float16": -14, "bfloat16": -126}
"""Exponent of the smallest normal number."""
LAMBDA = 2.0
"""The bound then fails with a probability of at most 2 exp(-2) for a single sum; a norm is over thousands of sums."""
FACTOR = 8.0
"""Two implementations differ in their constants: order of sums, fused ops, intermediate dtypes."""
TINY = 1e-30
"""Smaller norms count as zero."""


def roundoff(dtype: str) -> float:
    """Unit roundoff of a dtype; float32's for an unknown dtype."""
    return float(2.0 ** -DIGITS.get(dtype, DIGITS["float32"]))


def expected_error(dtype: str, roundings: int, terms: int) -> float:
    """The bound of the module's docstring, relative."""
    unit = roundoff(dtype)
    accumulator = min(unit, roundoff("float32"))
    return LAMBDA * math.sqrt(max(roundings, 1) * unit**2 + terms * accumulator**2)


def reduction_length(name: str, inputs: Sequence[tuple[int, ...]], output: tuple[int, ...]) -> int:
    """Number of terms of the sums of an op of PyTorch, from the shapes of its inputs and of its result."""
    if name in ("addmm", "baddbmm", "addmv"):
        return inputs[1][-1]
    if name in ("mm", "bmm", "mv", "dot", "_grouped_mm") or name.endswith("linear"):
        return inputs[0][-1]
    if "convolution" in name and len(inputs) > 1:
        return math.prod(inputs[1][1:])
    if "scaled_dot_product" in name:
        return inputs[0][-1] + inputs[1][-2]
    if "softmax" in name or "norm" in name:
        return inputs[0][-1] if inputs[0] else 1
    if name in ("sum", "mean", "var", "prod", "cumsum", "var_mean", "std", "logsumexp"):
        return max(math.prod(inputs[0]) // max(math.prod(output), 1), 1)
    return 1


def relative_error(array: np.ndarray, reference: np.ndarray) -> float | None:
    """Norm of the difference over the norm of the reference; ``None`` if it is not finite or the sizes differ."""
    if array.size != reference.size:
        return None
    wide = np.asarray(reference, np.float64).ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        difference, whole = np.linalg.norm(array.ravel() - wide), np.linalg.norm(wide)
    if whole <= TINY:
        return 0.0 if difference <= TINY else None
    error = float(difference / whole)
    return error if error < 1 / TINY else None


def rounded(array: np.ndarray, dtype: str) -> np.ndarray:
    """The array with its values rounded to ``dtype``, ties to even; bfloat16 and float16 as float32."""
    if dtype == "bfloat16":
        bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
        even = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
        return (even & np.uint32(0xFFFF0000)).view(np.float32).reshape(array.shape)
    if dtype == "float16":
        return array.astype(np.float16).astype(np.float32)
    return array.astype(np.float32) if dtype == "float32" else array


def cosine(array: np.ndarray, reference: np.ndarray) -> float | None:
    """Cosine of the angle between both; ``None`` if one is zero or not finite, or the sizes differ."""
    if array.size != reference.size:
        return None
    one, other = np.asarray(array, np.float64).ravel(), np.asarray(reference, np.float64).ravel()
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        value = float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
    return min(1.0, max(-1.0, value)) if math.isfinite(value) else None


def max_ulp(array: np.ndarray, reference: np.ndarray, dtype: str) -> float | None:
    """Largest difference of an element in units in the last place of the reference in ``dtype``.

    Elements below the root mean square count in units of that, because values that cancel have no exact digits.
    """
    if array.size != reference.size or not array.size:
        return None
    wide = np.asarray(reference, np.float64).ravel()
    digits, smallest = DIGITS.get(dtype, DIGITS["float32"]), _SMALLEST.get(dtype, _SMALLEST["float32"])
    with np.errstate(over="ignore", invalid="ignore"):
        scale = np.maximum(np.abs(wide), np.sqrt(np.mean(np.square(wide))))
        exponents = np.frexp(scale)[1] - 1  # 2^e <= |x| < 2^(e+1)
        spacing = np.ldexp(1.0, np.maximum(exponents, smallest) - (digits - 1))
        largest = float(np.max(np.abs(array.ravel() - wide) / spacing))
    return largest if math.isfinite(largest) and largest < TINY**-1 else None
