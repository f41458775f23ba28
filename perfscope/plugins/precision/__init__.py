"""Precision: what each recipe of narrow formats loses in a model's products, and which layers may use it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.model.plugins import Plugin, load

if TYPE_CHECKING:
    from perfscope.plugins.precision.jax_products import rounded_products as rounded_products
    from perfscope.plugins.precision.measure import losses as losses
    from perfscope.plugins.precision.recipes import RECIPES as RECIPES
    from perfscope.plugins.precision.recipes import Recipe as Recipe
    from perfscope.plugins.precision.recipes import quantised as quantised
    from perfscope.plugins.precision.sampling import sample as sample
    from perfscope.plugins.precision.torch_products import rounded_factors as rounded_factors

_HERE = "perfscope.plugins.precision"

PLUGIN = Plugin(
    name="precision",
    commands={"advise precision": f"{_HERE}.command:precision"},
    interventions={"precision-plan": f"{_HERE}.trial:PLAN"},
)

_FOR_OTHERS = {
    "rounded_factors": f"{_HERE}.torch_products:rounded_factors",
    "rounded_products": f"{_HERE}.jax_products:rounded_products",
    "losses": f"{_HERE}.measure:losses",
    "sample": f"{_HERE}.sampling:sample",
    **{name: f"{_HERE}.recipes:{name}" for name in ("RECIPES", "Recipe", "quantised")},
}
"""Names used by other plug-ins."""


def __getattr__(name: str) -> Any:
    if name not in _FOR_OTHERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_FOR_OTHERS[name])
