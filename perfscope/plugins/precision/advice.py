"""Which layers may be computed in which precision, from measured losses of their products."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from perfscope.analyzers.devices import Device, kernel_roof
from perfscope.model.op_flops import product_flops
from perfscope.plugins.precision.document import SCHEMA, LayerRow, Precision, RecipeRow
from perfscope.plugins.precision.measure import losses
from perfscope.plugins.precision.recipes import E5M2, RECIPES, Recipe

if TYPE_CHECKING:
    from perfscope.plugins.numerics import Numerics, Product, RecipeLoss

CLEARLY = 2.0
"""Ratio to the error on normal values from which the range of the factors adds to the rounding of the elements. The
rounding of a product that few values dominate is up to some three times that of many."""
BIASED = 0.5
"""Share of an error above the expected one in the direction of the product: rounding alone has a few percent,
saturation nearly all."""
LEAST_BIAS = 0.01
"""Smaller biases do not count: they are in the noise of 256 results."""
_BLOCK_UNITS = ("sm_100", "sm_103", "sm_120", "sm_121", "gfx950")
"""Architectures whose matrix units take a scale per block of elements."""
_ITEM = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_WIDE = "float32"
NARROW = {"bf16": "bfloat16", "fp16": "float16"}


def advise(numerics: Numerics, subject: str, device: Device | None, allowed: Sequence[str] = ()) -> Precision:
    """Advice from recorded numerics. ``allowed``: recipes that may be proposed; empty: those that the device has.

    A layer goes to the recipe that keeps most FLOPs of all layers, if it keeps all products of the layer: their errors
    are those of rounding normal values, and not in one direction. Else it goes to bf16 by the same test, else it stays.
    """
    layers: dict[str, list[Product]] = defaultdict(list)
    for product in numerics.products:
        if product.losses:
            layers[product.name].append(product)
    flops = {name: sum(map(_flops, products)) for name, products in layers.items()}
    whole = sum(flops.values()) or 1
    rows = []
    for name, recipe in RECIPES.items():
        known = [(owner, product, loss) for owner, products in layers.items() for product in products
                 if (loss := _loss(product, name)) is not None]  # fmt: skip
        if known:
            kept = [owner for owner, products in layers.items() if why_not(products, name) == ""]
            rows.append(_recipe_row(recipe, known, kept, sum(flops[one] for one in kept) / whole,
                                    _refused(recipe, device, allowed)))  # fmt: skip
    usable = [row for row in rows if row.bits < 16 and not row.refused and row.keeps]
    best = max(usable, key=lambda row: row.keeps, default=None)
    chosen = "" if best is None else best.recipe
    made = [_layer_row(name, products, chosen, device) for name, products in layers.items()]
    made.sort(key=lambda row: (-_bits(row.proposal), -row.flops))
    timed = [row for row in made if row.now_ns is not None and row.then_ns is not None]
    return Precision(
        schema=SCHEMA,
        subject=subject,
        framework=numerics.framework,
        target=None if device is None else device.name,
        recipe=chosen,
        steps=max((product.steps for product in numerics.products), default=0),
        recipes=tuple(rows),
        layers=tuple(made),
        now_ns=sum(row.now_ns or 0 for row in timed) if timed else None,
        then_ns=sum(row.then_ns or 0 for row in timed) if timed else None,
        notes=tuple(numerics.notes),
    )


def why_not(products: Iterable[Product], recipe: str) -> str:
    """Why a recipe does not keep all products of a layer; ``''`` if it does."""
    for product in sorted(products, key=lambda one: -_error(one, recipe)):
        loss = _loss(product, recipe)
        if loss is None:
            return f"{product.kind}: not measured in two steps"
        if loss.error > expected(recipe) and abs(loss.bias) > max(LEAST_BIAS, BIASED * loss.error):
            cause = f", {loss.overflow:.2%} of the values saturate" if loss.overflow else ""
            return f"{product.kind}: {loss.bias:+.1%} in one direction{cause}"
        if loss.error > CLEARLY * expected(recipe):
            cause = f", {loss.underflow:.1%} of the values become 0" if loss.underflow else ""
            return f"{product.kind}: error {loss.error:.2%}, {expected(recipe):.2%} is expected{cause}"
    return ""


@cache
def expected(recipe: str) -> float:
    """The error of a recipe on factors of normally distributed values, (16, 1024) each."""
    generator = np.random.default_rng(0)
    left, right = (generator.standard_normal((1, 16, 1024)).astype(np.float32) for _ in range(2))
    amax = float(np.abs(left).max()), float(np.abs(right).max())
    return losses(left, right, amax, amax, {recipe: RECIPES[recipe]})[recipe].error


def _loss(product: Product, recipe: str) -> RecipeLoss | None:
    return next((loss for loss in product.losses if loss.recipe == recipe), None)


def _error(product: Product, recipe: str) -> float:
    loss = _loss(product, recipe)
    return float("inf") if loss is None else loss.error


def _flops(product: Product) -> int:
    """FLOPs per step."""
    return product.calls * product_flops(product.batch * product.rows * product.columns, product.terms)


def _refused(recipe: Recipe, device: Device | None, allowed: Sequence[str]) -> str:
    if allowed:
        return "" if recipe.name in allowed else "not among the allowed recipes"
    if recipe.stochastic:
        return "for comparison"
    if recipe.bits < 8:
        return "4 bits: --recipes allows it"
    if recipe.element == E5M2:
        return "coarser than e4m3: --recipes allows it"
    if device is None:
        return ""
    if recipe.bits == 8 and "fp8" not in device.peak_flops:
        return "no such units"
    if recipe.block and not (device.architecture or "").startswith(_BLOCK_UNITS):
        return "no scales per block"
    return ""


def _recipe_row(
    recipe: Recipe, known: Sequence[tuple[str, Product, RecipeLoss]], kept: Sequence[str], keeps: float, refused: str
) -> RecipeRow:
    worst = max(known, key=lambda row: row[2].error)
    found = [loss for _, _, loss in known]
    return RecipeRow(
        recipe=recipe.name,
        bits=recipe.bits,
        keeps=keeps,
        layers=len(kept),
        expected=expected(recipe.name),
        median=median(loss.error for loss in found),
        worst=worst[2].error,
        worst_layer=worst[0],
        most_overflow=max(loss.overflow for loss in found),
        most_underflow=max(loss.underflow for loss in found),
        most_bias=max((loss.bias for loss in found), key=abs),
        refused=refused,
    )


def _layer_row(name: str, products: Sequence[Product], recipe: str, device: Device | None) -> LayerRow:
    narrow = why_not(products, recipe) if recipe else ""
    half = why_not(products, "bf16")
    proposal = recipe if recipe and not narrow else "bf16" if not half else _WIDE
    times = [_times(product, proposal, device) for product in products]
    known = [pair for pair in times if pair is not None]
    return LayerRow(
        layer=name,
        line=products[0].line,
        dtype=products[0].dtype,
        products=len(products),
        flops=sum(map(_flops, products)),
        proposal=proposal,
        error=None if proposal == _WIDE else max(_error(product, proposal) for product in products),
        reason="" if proposal == recipe else half if proposal == _WIDE else narrow,
        now_ns=round(sum(now for now, _ in known)) if known else None,
        then_ns=round(sum(then for _, then in known)) if known else None,
    )


def _times(product: Product, proposal: str, device: Device | None) -> tuple[float, float] | None:
    """Time of a product now and in the proposal, at the peaks of the device; ``None`` if it has no such peak.

    Factors are read in their dtype, and rounded to 8 bits by a separate pass, which reads and writes them once more.
    """
    if device is None:
        return None
    factors = product.batch * product.terms * (product.rows + product.columns)
    result = product.batch * product.rows * product.columns
    item = _ITEM.get(product.dtype, 4)
    flops = product_flops(result, product.terms)
    now = kernel_roof(device, flops=flops, dtype=product.dtype, moved=item * (factors + result))
    if proposal == _WIDE:
        then, passes = now, 0.0
    elif proposal in NARROW:
        then = kernel_roof(device, flops=flops, dtype=NARROW[proposal], moved=2 * (factors + result))
        passes = 0.0
    else:
        bits = RECIPES[proposal].bits
        dtype = "float8_e4m3fn" if bits == 8 else "float4_e2m1fn"
        then = kernel_roof(device, flops=flops, dtype=dtype, moved=factors * bits // 8 + 2 * result)
        passes = kernel_roof(device, flops=0, dtype=dtype, moved=factors * (2 + bits // 8)).roof_ns
    if now.compute_ns is None or then.compute_ns is None:
        return None
    return product.calls * now.roof_ns, product.calls * (then.roof_ns + passes)


def _bits(proposal: str) -> int:
    return 32 if proposal == _WIDE else RECIPES[proposal].bits


def counts(layers: Iterable[LayerRow]) -> Mapping[str, int]:
    """Number of layers by proposal."""
    result: dict[str, int] = defaultdict(int)
    for layer in layers:
        result[layer.proposal] += 1
    return result
