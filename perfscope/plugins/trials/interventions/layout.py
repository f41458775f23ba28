"""Convolutions: the layout of images, and the choice of cuDNN's algorithm."""

from __future__ import annotations

from typing import Any

from perfscope.plugins.trials.interventions.base import Application, Intervention, needs_cuda
from perfscope.plugins.trials.interventions.root_modules import RootModules

IMAGE_DIMENSIONS = 4


def _channels_last(application: Application) -> None:
    import torch

    converted: set[int] = set()

    def enter(module: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if id(module) not in converted:
            converted.add(id(module))
            if any(parameter.dim() == IMAGE_DIMENSIONS for parameter in module.parameters()):
                module.to(memory_format=torch.channels_last)
                application.changed(f"{type(module).__name__} and its inputs are channels_last")
            else:
                application.left(f"{type(module).__name__} has no weights with four dimensions")
        return tuple(
            value.contiguous(memory_format=torch.channels_last)
            if isinstance(value, torch.Tensor) and value.dim() == IMAGE_DIMENSIONS
            else value
            for value in arguments
        )

    RootModules(enter=enter)


def _cudnn_benchmark(application: Application) -> None:
    import torch

    torch.backends.cudnn.benchmark = True
    application.changed("torch.backends.cudnn.benchmark is True")

    def again(_number: int) -> None:
        if not torch.backends.cudnn.benchmark:
            torch.backends.cudnn.benchmark = True
            application.changed("torch.backends.cudnn.benchmark is True again in the loop")

    application.on_step.append(again)


CHANNELS_LAST = Intervention(
    name="channels-last",
    title="images as channels_last",
    family="layout",
    framework="torch",
    answers=("unfused_ops", "small_kernels"),
    may_change="Other convolution kernels, which sum in another order.",
    code="model = model.to(memory_format=torch.channels_last)\nimages = images.to(memory_format=torch.channels_last)",
    apply=_channels_last,
)
CUDNN_BENCHMARK = Intervention(
    name="cudnn-benchmark",
    title="the fastest cuDNN algorithm by trial",
    family="cudnn",
    framework="torch",
    answers=(),
    may_change="Another convolution algorithm, which may sum in another order or differ between launches.",
    code="torch.backends.cudnn.benchmark = True",
    applies=needs_cuda,
    apply=_cudnn_benchmark,
)
