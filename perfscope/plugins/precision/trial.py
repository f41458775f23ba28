"""The plan of `perfscope advise precision` as an intervention of `perfscope try`: bf16 but for some layers."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from perfscope.plugins.trials import Application, Facts, Intervention, RootModules

VARIABLE = "PERFSCOPE_PRECISION_PLAN"
"""File of ``perfscope advise precision --json``."""


def _without_plan(facts: Facts) -> str | None:
    file = facts.variables.get(VARIABLE, "")
    if not file:
        return f"no plan: {VARIABLE}=FILE names that of `perfscope advise precision RUN --json FILE`"
    return None if Path(file).is_file() else f"{VARIABLE}={file}: no such file"


def _absolute(facts: Facts) -> Mapping[str, str]:
    """The file's path for a program that is started in another folder."""
    file = facts.variables.get(VARIABLE, "")
    return {VARIABLE: str(Path(file).resolve())} if file else {}


def _apply(application: Application) -> None:
    """Run each model under autocast to bfloat16; modules that the plan keeps in float32 run without it."""
    import torch

    from perfscope.plugins.precision.document import load

    plan = load(Path(os.environ[VARIABLE]))
    wide = {layer.layer for layer in plan.layers if layer.proposal == "float32"}
    contexts: list[Any] = []

    def enter(module: Any, _arguments: Any) -> None:
        device = next((parameter.device.type for parameter in module.parameters()), "cpu")
        context = torch.autocast(device, dtype=torch.bfloat16)
        context.__enter__()
        contexts.append(context)

    def leave(_module: Any, _output: Any) -> None:
        if contexts:
            contexts.pop().__exit__(None, None, None)

    def found(models: list[Any]) -> None:
        for model in models:
            root = type(model).__name__
            for path, module in model.named_modules():
                name = f"{root}.{path}" if path else root
                if name in wide:
                    module.forward = _in_float32(module.forward)
                    application.changed(f"{name} stays in float32")
            application.changed(f"calls of {root} run under autocast to bfloat16")

    RootModules(enter=enter, leave=leave, found=found)


def _in_float32(forward: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    def cast(value: Any) -> Any:
        return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    def call(*arguments: Any, **named: Any) -> Any:
        device = next((one.device.type for one in arguments if isinstance(one, torch.Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return forward(*map(cast, arguments), **{name: cast(value) for name, value in named.items()})

    return call


PLAN = Intervention(
    name="precision-plan",
    title="bfloat16 but for the layers of a plan",
    family="autocast",
    framework="torch",
    answers=(),
    may_change="Products of the layers that the plan lets go narrower run in bfloat16, with 7 bits of the mantissa, "
    "also where the plan has 8 bits: those kernels are not part of the program.",
    code="with torch.autocast(device_type, dtype=torch.bfloat16):\n"
    "    loss = loss_of(model(batch), target)  # in forward of the layers: torch.autocast(device_type, enabled=False)",
    applies=_without_plan,
    environment=_absolute,
    apply=_apply,
)
