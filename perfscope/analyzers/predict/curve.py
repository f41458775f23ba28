"""Kinds of kernels that reach alike shares of the roofline, and what one kind reaches."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Category = Literal[
    "product", "attention", "attention backward", "convolution", "convolution backward", "norm", "norm backward",
    "batch norm", "batch norm backward", "softmax", "reduction", "elementwise", "strided", "join", "gather", "copy",
]  # fmt: skip
"""``elementwise``: whole lines in a row; ``strided``: an elementwise kernel over strides or broadcasts, a
change of layout; ``join``: ``cat``, ``stack``; ``gather``: embedding and indexed
reads and writes; ``copy``: the copy engine inside a device."""

PRODUCTS: frozenset[Category] = frozenset(
    ["product", "attention", "attention backward", "convolution", "convolution backward"]
)


class Curve(Struct, frozen=True, kw_only=True):
    """Of one category on the devices of one architecture, or of all of one vendor."""

    devices: str
    """``sm_90a``, or the vendor."""
    category: Category
    float32: bool
    """Of products without TF32 and 16-bit units."""
    floor: int
    """Of a kernel beside its work, ns."""
    matrix: float
    """Share of the peak of products."""
    memory: float
    """Share of the memory bandwidth."""
    elements: float
    """Elements that a core moves in a cycle where they are moved one by one; 0: not bound by them."""
    half: int
    """Length of a sequence at which attention reaches half of ``matrix``; 0: at any."""
    small: tuple[float, float]
    """Ends over the middle where the floor is the longer part."""
    large: tuple[float, float]
    """The same of the others."""
    shapes: int
    """Different ops with their shapes that it was fitted to."""
    kernels: int
    """Measured calls of them."""
