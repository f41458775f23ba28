"""Numerics: value ranges, NaN and infinity, loss scales and lost precision of tensors in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.model.plugins import Plugin, Recording, RuleHome, load

if TYPE_CHECKING:
    from perfscope.plugins.numerics.document import Numerics as Numerics
    from perfscope.plugins.numerics.document import Product as Product
    from perfscope.plugins.numerics.document import RecipeLoss as RecipeLoss
    from perfscope.plugins.numerics.document import StepValues as StepValues
    from perfscope.plugins.numerics.document import load_numerics as load_numerics
    from perfscope.plugins.numerics.document import numerics_of as numerics_of

_HERE = "perfscope.plugins.numerics"
_NEEDS = ("numerics",)

PLUGIN = Plugin(
    name="numerics",
    options={"run": (f"{_HERE}.options:NUMERICS",)},
    recordings={
        "numerics": Recording(
            what="numerics of the tensors (`perfscope run --numerics ...`)",
            recorder=f"{_HERE}.capture:NumericsCapture",
            tools=("jax_numerics", "torch_numerics"),
            available=f"{_HERE}.capture:available",
            read=f"{_HERE}.document:load_numerics",
        )
    },
    results={"numerics": f"{_HERE}.summary:numerics_summary"},
    tables={"numerics_tensors": f"{_HERE}.summary:TENSORS"},
    report=f"{_HERE}.sections",
    rules={
        rule: RuleHome(module=f"{_HERE}.rules.{rule}", needs=_NEEDS, compares_digests=True)
        for rule in ("low_precision_accumulation", "nonfinite", "unstable_scale")
    },
)

_SHOWN = ("Numerics", "Product", "RecipeLoss", "StepValues", "load_numerics", "numerics_of")
_FOR_OTHERS = {name: f"{_HERE}.document:{name}" for name in _SHOWN}
"""Names used by other plug-ins."""


def __getattr__(name: str) -> Any:
    if name not in _FOR_OTHERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_FOR_OTHERS[name])
