"""A module that was converted from ONNX, as a graph of PyTorch's ops whose weights have no data.

Converted modules read shapes and axes from tensors while they run. `KnownValues` lets these be numbers while the graph
is traced over fake tensors, so that the graph has them as constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from perfscope.plugins.ahead.torch import compat

MOST_VALUES = 64
"""Most elements of a constant of floating point that keeps its values: scales and bounds, which may select a shape."""


class KnownValues(torch.Tensor):  # type: ignore[misc] # torch is not followed
    """A constant of the model: functions of such tensors alone are computed, outside of all modes."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` with plain tensors; the result has known values if all arguments have."""
        known: list[bool] = []

        def plain(tensor: torch.Tensor) -> torch.Tensor:
            known.append(isinstance(tensor, KnownValues))
            return tensor.as_subclass(torch.Tensor) if isinstance(tensor, KnownValues) else tensor

        with compat.without_functions_of_subclasses():
            args, kwargs = compat.map_tensors((args, kwargs or {}), plain)
            if not all(known):
                return func(*args, **kwargs)
            with compat.without_modes():
                result = func(*args, **kwargs)
            return compat.map_tensors(result, lambda tensor: tensor.as_subclass(KnownValues))


def graph_of(module: Any, inputs: Sequence[tuple[Sequence[int], Any]]) -> Any:
    """Return the graph module of a call with inputs of these shapes and dtypes; its weights are fake tensors."""
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = compat.FakeTensorMode(allow_non_fake_inputs=True)
    for owner in module.modules():
        for name, parameter in list(owner.named_parameters(recurse=False)):
            fake = mode.from_tensor(parameter.detach())
            setattr(owner, name, torch.nn.Parameter(fake, requires_grad=False))
        for name, constant in list(owner.named_buffers(recurse=False)):
            weight = constant.is_floating_point() and constant.numel() > MOST_VALUES
            setattr(owner, name, mode.from_tensor(constant) if weight else constant.as_subclass(KnownValues))
    with mode, torch.no_grad(), compat.without_hooks_of_modules():
        arguments = [torch.empty(list(shape), dtype=dtype) for shape, dtype in inputs]
        trace = make_fx(lambda *given: module(*given), tracing_mode="real", _allow_non_fake_inputs=True)
        return trace(*arguments).eval()


class OnnxModel(torch.nn.Module):  # type: ignore[misc] # torch is not followed
    """The graph as a model: calls of a module of `torch.fx` itself are not seen as steps."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self.graph = graph

    def forward(self, *inputs: Any) -> Any:
        """Call the graph."""
        return self.graph(*inputs)


def with_weights(graph: Any) -> OnnxModel:
    """Return a model of the graph with weights as the current modes make them, in place of fake ones."""
    fake = [(name, buffer) for name, buffer in graph.named_buffers() if isinstance(buffer, compat.FakeTensor)]
    for name, tensor in [*fake, *graph.named_parameters()]:
        delattr(graph, name)
        empty = torch.empty(tensor.shape, dtype=tensor.dtype)
        setattr(graph, name, torch.nn.Parameter(empty, requires_grad=False))
    model: OnnxModel = OnnxModel(graph).eval()
    return model
