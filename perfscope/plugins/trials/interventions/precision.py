"""Fewer bits in matrix products of PyTorch: `torch.set_float32_matmul_precision`, and autocast to bfloat16."""

from __future__ import annotations

from functools import partial
from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Intervention
from perfscope.plugins.trials.interventions.root_modules import RootModules
from perfscope.profiler.patching import wrap

_MATMUL_CODE = 'torch.set_float32_matmul_precision("{precision}")  # before the first product'


def _matmul(precision: str, application: Application) -> None:
    """Set the precision now, and again whenever the program sets it."""
    import torch

    def make(original: Any) -> Any:
        def set_float32_matmul_precision(requested: str) -> None:
            application.changed(f"set_float32_matmul_precision({requested!r}) is {precision!r}")
            original(precision)

        return set_float32_matmul_precision

    torch.set_float32_matmul_precision(precision)
    application.changed(f"float32 matmul precision is {precision!r}")
    wrap(torch, "set_float32_matmul_precision", make)


def _autocast(application: Application) -> None:
    """Run each call of a model under autocast; code outside of it, such as a loss, is unchanged."""
    import torch

    open_contexts: list[Any] = []

    def enter(module: Any, _arguments: Any) -> None:
        device = next((parameter.device.type for parameter in module.parameters()), "cpu")
        context = torch.autocast(device, dtype=torch.bfloat16)
        context.__enter__()
        open_contexts.append(context)
        application.changed(f"calls of {type(module).__name__} run under autocast({device!r}, dtype=torch.bfloat16)")

    def leave(_module: Any, _output: Any) -> None:
        if open_contexts:
            open_contexts.pop().__exit__(None, None, None)

    RootModules(enter=enter, leave=leave)


def _float32(application: Application) -> None:
    """Keep float32 as default dtype if the program sets float64."""
    import torch

    def make(original: Any) -> Any:
        def set_default_dtype(requested: Any) -> None:
            if requested is torch.float64:
                application.changed("the default dtype is torch.float32, not torch.float64")
                requested = torch.float32
            original(requested)

        return set_default_dtype

    wrap(torch, "set_default_dtype", make)


MATMUL_HIGH = Intervention(
    name="matmul-high",
    title="float32 matrix products in TF32",
    family="matmul precision",
    framework="torch",
    answers=("full_precision_matmul",),
    may_change="Products of float32 matrices keep 10 bits of the mantissa (TF32), or two bfloat16 parts, where the "
    "device has units for it. Sums stay in float32.",
    code=_MATMUL_CODE.format(precision="high"),
    apply=partial(_matmul, "high"),
)
MATMUL_MEDIUM = Intervention(
    name="matmul-medium",
    title="float32 matrix products in bfloat16",
    family="matmul precision",
    framework="torch",
    answers=("full_precision_matmul",),
    may_change="Products of float32 matrices keep 7 bits of the mantissa (bfloat16) where the device has units for it. "
    "Sums stay in float32.",
    code=_MATMUL_CODE.format(precision="medium"),
    apply=partial(_matmul, "medium"),
)
FLOAT32_DEFAULT = Intervention(
    name="float32-default",
    title="float32 in place of float64",
    family="default dtype",
    framework="torch",
    answers=("double_precision", "full_precision_matmul"),
    may_change="All that is computed keeps 24 bits of the mantissa, not 53.",
    code="torch.set_default_dtype(torch.float32)",
    apply=_float32,
)
AUTOCAST_BF16 = Intervention(
    name="autocast-bf16",
    title="bfloat16 by autocast",
    family="autocast",
    framework="torch",
    answers=("full_precision_matmul",),
    may_change="Matrix products, convolutions and attention of the model run in bfloat16, with 7 bits of the mantissa; "
    "the model's outputs may be bfloat16.",
    code="with torch.autocast(device_type, dtype=torch.bfloat16):\n"
    "    loss = loss_of(model(batch), target)\nloss.backward()",
    apply=_autocast,
)
