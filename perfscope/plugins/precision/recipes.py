"""Rounding to narrow floating-point formats with scales, simulated in float32: the same values as a real cast.

Works on arrays of NumPy, PyTorch and JAX: ``xp`` is that module. Element formats are those of the OCP 8-bit Floating
Point Specification (E4M3, E5M2) and of the OCP Microscaling Formats Specification 1.0 (E2M1 elements, E8M0 scales: the
exponent of a block's largest value minus that of the largest element). NVFP4 has blocks of 16 elements with a scale in
E4M3 and a float32 scale per tensor. Values beyond the largest element saturate.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Scaling = Literal["none", "tensor", "row", "delayed", "mx", "mx-up", "nv"]


class Element(NamedTuple):
    """A floating-point format of elements."""

    mantissa: int
    """Bits after the leading one."""
    smallest: int
    """Exponent of the smallest normal number."""
    largest: float
    dtype: str
    """Its name in ml_dtypes."""


class Recipe(NamedTuple):
    """How the factors of a product are rounded."""

    name: str
    element: Element
    bits: int
    """Bits of an element."""
    scaling: Scaling = "none"
    block: int = 0
    """Elements that share a scale, along the sum of the product; 0: not in blocks."""
    stochastic: bool = False


BF16 = Element(mantissa=7, smallest=-126, largest=(2 - 2.0**-7) * 2.0**127, dtype="bfloat16")
FP16 = Element(mantissa=10, smallest=-14, largest=65504.0, dtype="float16")
E4M3 = Element(mantissa=3, smallest=-6, largest=448.0, dtype="float8_e4m3fn")
E5M2 = Element(mantissa=2, smallest=-14, largest=57344.0, dtype="float8_e5m2")
E2M1 = Element(mantissa=1, smallest=0, largest=6.0, dtype="float4_e2m1fn")

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(name="bf16", element=BF16, bits=16),
        Recipe(name="fp16", element=FP16, bits=16),
        Recipe(name="e4m3-tensor", element=E4M3, scaling="tensor", bits=8),
        Recipe(name="e4m3-row", element=E4M3, scaling="row", bits=8),
        Recipe(name="e4m3-delayed", element=E4M3, scaling="delayed", bits=8),
        Recipe(name="e5m2-tensor", element=E5M2, scaling="tensor", bits=8),
        Recipe(name="e5m2-row", element=E5M2, scaling="row", bits=8),
        Recipe(name="e5m2-delayed", element=E5M2, scaling="delayed", bits=8),
        Recipe(name="e5m2-tensor-sr", element=E5M2, scaling="tensor", bits=8, stochastic=True),
        Recipe(name="mxfp8", element=E4M3, scaling="mx", block=32, bits=8),
        Recipe(name="mxfp8-e5m2", element=E5M2, scaling="mx", block=32, bits=8),
        Recipe(name="mxfp8-up", element=E4M3, scaling="mx-up", block=32, bits=8),
        Recipe(name="nvfp4", element=E2M1, scaling="nv", block=16, bits=4),
        Recipe(name="nvfp4-sr", element=E2M1, scaling="nv", block=16, bits=4, stochastic=True),
    )
}
"""By name. ``sr``: stochastic rounding. ``mxfp8-up``: scales are rounded up, so that nothing saturates; the standard
rounds them down. ``row``: a scale per row of a factor, along the sum. ``delayed``: the scale of
the largest value in earlier steps."""

_EXPONENT = 0x7F800000
_LEAST = 2.0**-126
"""Smallest normal number of float32: smaller scales would be subnormal."""


def rounded(xp: Any, values: Any, element: Element, noise: Any = None) -> Any:
    """Round float32 ``values`` to the nearest element, ties to even; the largest element for values beyond it.

    ``noise(shape)``: numbers in [0, 1), to round up with the probability of the distance (stochastic rounding).
    """
    values = xp.clip(values, -element.largest, element.largest)
    step = xp.clip(_power(xp, values), 2.0**element.smallest, None) * 2.0**-element.mantissa
    units = values / step
    whole = xp.round(units) if noise is None else xp.floor(units + noise(units.shape))
    return whole * step


def quantised(xp: Any, values: Any, recipe: Recipe, *, amax: Any = None, before: Any = None, noise: Any = None) -> Any:
    """Round ``values`` (..., n), float32, by a recipe and scale them back; the last axis is that of the sum.

    ``amax``: largest magnitude of the whole tensor, else that of ``values``; ``before``: that of earlier steps, for
    delayed scales. ``noise``: for stochastic rounding. The length of the last axis need not be a multiple of a block.
    """
    scaled, scale = scaled_by(xp, values, recipe, amax=amax, before=before)
    return restored(rounded(xp, scaled, recipe.element, noise if recipe.stochastic else None) * scale, values)


def scaled_by(xp: Any, values: Any, recipe: Recipe, *, amax: Any = None, before: Any = None) -> tuple[Any, Any]:
    """Values divided by their scales, and the scales; both in blocks if the recipe has them."""
    largest = recipe.element.largest
    if recipe.scaling == "none":
        return values, xp.ones_like(values[..., :1])
    whole = xp.amax(xp.abs(values)) if amax is None else amax
    if recipe.scaling in ("tensor", "delayed"):
        known = whole if recipe.scaling == "tensor" or before is None else before
        scale = _safe(xp, xp.ones_like(values[..., :1]) * known / largest)
        return values / scale, scale
    if recipe.scaling == "row":
        scale = _safe(xp, xp.amax(xp.abs(values), axis=-1, keepdims=True) / largest)
        return values / scale, scale
    blocks = _blocks(xp, values, recipe.block)
    most = xp.amax(xp.abs(blocks), axis=-1, keepdims=True)
    if recipe.scaling == "mx":
        scale = _safe(xp, _power(xp, most) * 2.0 ** -_exponent(largest))
        return blocks / scale, scale
    if recipe.scaling == "mx-up":
        least = most / largest
        power = _power(xp, least)
        scale = _safe(xp, xp.where(power < least, power * 2, power))
        return blocks / scale, scale
    outer = _safe(xp, xp.ones_like(most) * whole / (largest * E4M3.largest))
    scale = rounded(xp, most / largest / outer, E4M3) * outer
    return xp.where(scale > 0, blocks / _safe(xp, scale), xp.zeros_like(blocks)), scale


def restored(blocks: Any, like: Any) -> Any:
    """The values of blocks in the shape of ``like``, without the padding of the last block."""
    if blocks.shape == like.shape:
        return blocks
    return blocks.reshape(*like.shape[:-1], -1)[..., : like.shape[-1]]


def _exponent(value: float) -> int:
    return int(value).bit_length() - 1


def _power(xp: Any, values: Any) -> Any:
    """The largest power of two up to each magnitude."""
    return (values.view(xp.int32) & _EXPONENT).view(xp.float32)


def _safe(xp: Any, scale: Any) -> Any:
    """Scales of values that are all 0 become 1."""
    return xp.where(scale >= _LEAST, scale, xp.ones_like(scale))


def _blocks(xp: Any, values: Any, block: int) -> Any:
    """(..., n) as (..., blocks, block), the last one filled with 0."""
    rest = -values.shape[-1] % block
    if rest:
        shape = (*values.shape[:-1], rest)
        values = xp.concatenate([values, xp.zeros_like(values[..., :1]) + xp.zeros(shape, dtype=xp.float32)], axis=-1)
    return values.reshape(*values.shape[:-1], -1, block)
