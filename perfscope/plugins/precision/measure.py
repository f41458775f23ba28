"""Errors of a product of matrices whose factors a recipe rounds, from some rows of both factors."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfscope.plugins.numerics import RecipeLoss
from perfscope.plugins.precision.recipes import RECIPES, Recipe, restored, rounded, scaled_by


def losses(
    left: np.ndarray,
    right: np.ndarray,
    amax: tuple[float, float],
    before: tuple[float, float] | None = None,
    recipes: Mapping[str, Recipe] = RECIPES,
) -> dict[str, RecipeLoss]:
    """Losses by recipe of the product of ``left`` (batch, rows, terms) and ``right`` (batch, columns, terms).

    ``amax``: largest magnitudes of the whole factors; ``before``: those of earlier steps, without which delayed scales
    are left out. Empty for factors that are not finite, and for a product of 0.
    """
    factors = [np.ascontiguousarray(one, np.float32) for one in (left, right)]
    exact = _product(*factors)
    whole = float(np.linalg.norm(exact))
    if not all(map(np.isfinite, (whole, *amax))) or not whole or not all(np.isfinite(one).all() for one in factors):
        return {}
    result = {}
    for name, recipe in recipes.items():
        if recipe.scaling == "delayed" and (before is None or not all(before)):
            continue
        earlier = before or amax
        parts = [_one(*given, recipe) for given in zip(factors, amax, earlier, strict=True)]
        difference = _product(parts[0][0], parts[1][0]) - exact
        counted = sum(part[1] for part in parts) or 1
        result[name] = RecipeLoss(
            recipe=name,
            error=float(np.linalg.norm(difference)) / whole,
            bias=float(np.vdot(difference, exact)) / whole**2,
            overflow=sum(part[2] for part in parts) / counted,
            underflow=sum(part[3] for part in parts) / counted,
        )
    return result


def _product(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    made: np.ndarray = np.asarray(left, np.float64) @ np.asarray(right, np.float64).swapaxes(-1, -2)
    return made


def _one(values: np.ndarray, amax: float, before: float, recipe: Recipe) -> tuple[np.ndarray, int, int, int]:
    """The rounded factor, and its nonzero values: all, those that overflow, those that become 0."""
    noise = np.random.default_rng(0)
    scaled, scale = scaled_by(np, values, recipe, amax=np.float32(amax), before=np.float32(before))
    elements = rounded(
        np, scaled, recipe.element, (lambda shape: noise.random(shape, np.float32)) if recipe.stochastic else None
    )
    nonzero = scaled != 0
    beyond = recipe.element.largest * (1 + 2.0 ** -(recipe.element.mantissa + 2))
    over = int((np.abs(scaled) > beyond).sum())
    made = restored(elements * scale, values)
    return made, int(nonzero.sum()), over, int((nonzero & (elements == 0)).sum())
