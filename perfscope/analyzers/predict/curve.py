"""Categories of kernels with similar shares of the roofline, and the efficiency curve of a category."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Category = Literal[
    "product", "attention", "attention backward", "convolution", "convolution backward", "norm", "norm backward",
    "batch norm", "batch norm backward", "softmax", "reduction", "elementwise", "strided", "join", "gather", "copy",
]  # fmt: skip
"""``elementwise``: contiguous lines; ``strided``: an elementwise kernel over strides or broadcasts, a change of layout;
``join``: ``cat``, ``stack``; ``gather``: embedding and indexed reads and writes; ``copy``: the copy engine inside a
device."""

PRODUCTS: frozenset[Category] = frozenset(
    ["product", "attention", "attention backward", "convolution", "convolution backward"]
)


class Curve(Struct, frozen=True, kw_only=True):
    """The curve of a category on devices of one architecture, or of one vendor."""

    devices: str
    """``sm_90a``, or the vendor."""
    category: Category
    float32: bool
    """For products without TF32 and 16-bit units."""
    floor: int
    """Fixed time of a kernel, ns."""
    matrix: float
    """Share of the peak of matrix products."""
    memory: float
    """Share of the memory bandwidth."""
    elements: float
    """Elements per core and cycle if elements are moved one by one; 0: not a limit."""
    half: int
    """Sequence length at which attention reaches half of ``matrix``; 0: at any length."""
    small: tuple[float, float]
    """Ends relative to the middle if the fixed time dominates."""
    large: tuple[float, float]
    """Ends relative to the middle otherwise."""
    shapes: int
    """Number of distinct ops with shapes used in the fit."""
    kernels: int
    """Number of measured calls of these."""
