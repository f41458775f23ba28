"""Trials: changes made to a program from outside, and what each gains, by launches in pairs (`perfscope try`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfscope.model.plugins import Plugin, load

if TYPE_CHECKING:
    from perfscope.plugins.trials.interventions.base import Application as Application
    from perfscope.plugins.trials.interventions.base import Facts as Facts
    from perfscope.plugins.trials.interventions.base import Intervention as Intervention
    from perfscope.plugins.trials.interventions.root_modules import RootModules as RootModules

_HERE = "perfscope.plugins.trials"

PLUGIN = Plugin(
    name="trials",
    commands={"try": f"{_HERE}.command:try_"},
    tasks={"try": "Fix"},
    options={"rules": (f"{_HERE}.options:CALIBRATION",)},
    pages={"tries": f"{_HERE}.page"},
    documents={"try": f"{_HERE}.document"},
)

_FOR_OTHERS = {
    **{name: f"{_HERE}.interventions.base:{name}" for name in ("Application", "Facts", "Intervention")},
    "RootModules": f"{_HERE}.interventions.root_modules:RootModules",
}
"""Names used by plug-ins that add interventions."""


def __getattr__(name: str) -> Any:
    if name not in _FOR_OTHERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return load(_FOR_OTHERS[name])
