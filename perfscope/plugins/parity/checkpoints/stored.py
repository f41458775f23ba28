"""A checkpoint that is open: its weights, and their arrays in the dtype in which they are stored."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct

from perfscope.plugins.parity.checkpoints import float8
from perfscope.plugins.parity.document import Weight
from perfscope.plugins.parity.errors import rounded

STORAGE = {
    "float64": "<f8",
    "float32": "<f4",
    "float16": "<f2",
    "bfloat16": "<u2",
    **dict.fromkeys(float8.EXPONENT_BITS, "|u1"),
}
"""dtype of a weight -> dtype of its array in numpy, which has no bfloat16 and no float8: their bits."""


class Checkpoint(Struct, frozen=True, kw_only=True):
    """Floating-point arrays of a checkpoint."""

    weights: tuple[Weight, ...]
    arrays: Mapping[str, np.ndarray]
    """By name, in `STORAGE`; of files an array is read when it is used."""
    torch: bool
    """Whether its names and layouts are those of a PyTorch state dict."""
    ignored: tuple[str, ...] = ()
    """Names of arrays that are not floating-point."""


def stored_bytes(weight: Weight) -> int:
    """Size of a weight's array in a file."""
    return math.prod(weight.shape) * np.dtype(STORAGE[weight.dtype]).itemsize


Make = Callable[[str], np.ndarray]
"""Makes the array of a name, in `STORAGE`."""


def widened(array: np.ndarray, dtype: str) -> np.ndarray:
    """The values of a stored array; narrower ones as float32, which is exact."""
    if dtype in float8.EXPONENT_BITS:
        return np.asarray(float8.values(dtype)[array])
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(array.shape)
    return array.astype(np.float32) if dtype == "float16" else array


def narrowed(array: np.ndarray, dtype: str) -> np.ndarray:
    """Values as they are stored in ``dtype``, rounded to nearest, ties to even; NaN stays NaN."""
    if dtype in float8.EXPONENT_BITS:
        return float8.codes(array, dtype)
    if dtype != "bfloat16":
        return array.astype(STORAGE[dtype], copy=False)
    single = np.ascontiguousarray(array, np.float32)
    bits = (rounded(single, dtype).view(np.uint32) >> np.uint32(16)).astype("<u2")
    quiet = (single.view(np.uint32) >> np.uint32(16)).astype("<u2") | np.uint16(0x40)
    return np.where(np.isnan(single), quiet, bits).reshape(array.shape)


def in_torch_names(names: list[str]) -> bool:
    """Whether names are those of a state dict: parts between dots, and no kernels."""
    return not any("/" in name or name.rpartition(".")[2] == "kernel" for name in names)
