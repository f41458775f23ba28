"""PyTorch's optimizers: one kernel for all parameters, and gradients that are not filled with zeros."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Intervention
from perfscope.profiler.patching import wrap


def _implementation(chosen: str, application: Application) -> None:
    """Create every optimizer of ``torch.optim`` that has the option ``chosen`` with it; if it refuses, unchanged."""
    import torch

    others = {"fused": {"foreach": False}, "foreach": {"fused": False}}[chosen]

    def make(original: Any) -> Any:
        signature = inspect.signature(original)

        def __init__(optimizer: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
            name = type(optimizer).__name__
            try:
                bound = signature.bind(optimizer, *arguments, **named)
            except TypeError:  # the program's own error, in its own words
                original(optimizer, *arguments, **named)
                return
            if bound.arguments.get(chosen) is True:
                original(optimizer, *arguments, **named)
                return
            parameters = bound.arguments.get("params")
            if parameters is not None and not isinstance(parameters, list | dict | torch.Tensor):
                bound.arguments["params"] = list(parameters)  # a generator can be read only once
            usual = dict(bound.arguments)
            ours = {**others, chosen: True}
            bound.arguments.update({key: value for key, value in ours.items() if key in signature.parameters})
            try:
                original(*bound.args, **bound.kwargs)
            except (RuntimeError, ValueError) as error:
                application.left(f"{name}: {str(error).splitlines()[0]}")
                bound.arguments.clear()
                bound.arguments.update(usual)
                original(*bound.args, **bound.kwargs)
            else:
                application.changed(f"{name}({chosen}=True)")

        return __init__

    for kind in {value for value in vars(torch.optim).values() if isinstance(value, type)}:
        if "__init__" in vars(kind) and chosen in inspect.signature(vars(kind)["__init__"]).parameters:
            wrap(kind, "__init__", make)


def _zero_grad(application: Application) -> None:
    """Make ``zero_grad(set_to_none=False)`` of optimizers and modules set gradients to ``None``."""
    import torch

    def make(original: Any) -> Any:
        def zero_grad(holder: Any, set_to_none: bool = True) -> None:
            if not set_to_none:
                application.changed(f"{type(holder).__name__}.zero_grad(set_to_none=True)")
            original(holder, set_to_none=True)

        return zero_grad

    for kind in (torch.optim.Optimizer, torch.nn.Module):
        wrap(kind, "zero_grad", make)


FUSED = Intervention(
    name="fused-optimizer",
    title="fused optimizer",
    family="optimizer",
    framework="torch",
    answers=("unfused_optimizer", "small_kernels", "launch_bound"),
    may_change="The update of a parameter is computed in one expression: its last bit may differ.",
    code="optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)",
    apply=partial(_implementation, "fused"),
)
FOREACH = Intervention(
    name="foreach-optimizer",
    title="optimizer over lists of tensors",
    family="optimizer",
    framework="torch",
    answers=("unfused_optimizer", "small_kernels", "launch_bound"),
    may_change="The same operations in the same order; temporary tensors as large as the parameters.",
    code="optimizer = torch.optim.AdamW(model.parameters(), lr=lr, foreach=True)",
    after="fused-optimizer",
    apply=partial(_implementation, "foreach"),
)
ZERO_GRAD_NONE = Intervention(
    name="zero-grad-none",
    title="gradients set to None",
    family="zero_grad",
    evident=True,
    framework="torch",
    answers=("unfused_optimizer", "small_kernels"),
    may_change="An optimizer skips parameters without a gradient, where it took a gradient of zero before.",
    code="optimizer.zero_grad(set_to_none=True)",
    apply=_zero_grad,
)
