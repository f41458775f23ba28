"""Values that the program computes in its first steps, recorded to compare them with those of another launch.

PyTorch: outputs of the models, losses (tensors with a call of ``backward``), gradients and parameters at each step of
an optimizer. JAX: outputs of the jitted functions and gradients that the program calls itself. Reading a value waits
for the device, so no launch that records is timed.
"""

from __future__ import annotations

import functools
import math
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

from perfscope.plugins.trials.interventions.root_modules import RootModules
from perfscope.plugins.trials.process_report import RecordedValue, ValueKind
from perfscope.profiler.jax.wrapped import WrappedFunction, wrap_jit
from perfscope.profiler.patching import wrap
from perfscope.profiler.torch.module_calls import torch_tensors

SAMPLE = 64
"""Elements of a tensor that are kept: enough to see a difference of a few, and a small file."""
MOST_OUTPUTS = 8
"""Tensors of one output."""
MOST_NAMES = 16
"""Models, optimizers or functions whose values are kept."""
MOST_LAYERS = 2_000
"""Modules whose outputs are kept of the first call."""
MOST_NORMS = 256
"""Gradients of which the norm is kept one by one."""
SEED = 0


class ResultRecorder:
    """Keeps the values of the first steps. ``steps``: how many."""

    def __init__(self, steps: int) -> None:
        """Nothing is hooked yet."""
        self._steps = steps
        self._counts: dict[tuple[ValueKind, str], int] = {}
        self.values: list[RecordedValue] = []
        self.layers: list[RecordedValue] = []
        self._modules: dict[int, str] = {}
        self._parameters: dict[int, str] = {}
        """Ids of the models' tensors -> names."""
        self.unrecorded: list[str] = []

    def listen(self, framework: str) -> None:
        """Hook the framework, which is imported; seed the generators of a program that does not do it itself."""
        random.seed(SEED)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(SEED)
        if framework == "torch":
            self._listen_torch()
        elif framework == "jax":
            self._listen_jax()

    def _take(self, kind: ValueKind, name: str) -> int | None:
        """The index of this value among those of its name; ``None`` if it is not kept."""
        key = (kind, name)
        if key not in self._counts and len(self._counts) >= MOST_NAMES * 4:
            return None
        number = self._counts.get(key, 0)
        self._counts[key] = number + 1
        return number if number < self._steps else None

    def _guarded(self, record: Callable[..., None]) -> Callable[..., None]:
        """Wrap ``record`` so that an error of perfscope does not reach the program."""

        @functools.wraps(record)
        def call(*arguments: Any) -> None:
            try:
                record(*arguments)
            except Exception as error:
                text = f"{record.__name__.strip('_')}: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
                if text not in self.unrecorded and len(self.unrecorded) < MOST_NAMES:
                    self.unrecorded.append(text)

        return call

    def _listen_torch(self) -> None:
        import torch
        from torch.optim import optimizer

        torch.manual_seed(SEED)
        output, loss = self._guarded(self._torch_output), self._guarded(self._torch_loss)
        gradients, parameters = self._guarded(self._torch_gradients), self._guarded(self._torch_parameters)
        layer = self._guarded(self._torch_layer)
        RootModules(leave=lambda module, value: output(module, value), inner=lambda *called: layer(*called))

        def make(original: Any) -> Any:
            def backward(tensor: Any, *arguments: Any, **named: Any) -> Any:
                loss(tensor)
                return original(tensor, *arguments, **named)

            return backward

        wrap(torch.Tensor, "backward", make)
        optimizer.register_optimizer_step_pre_hook(lambda stepping, *_: gradients(stepping))
        optimizer.register_optimizer_step_post_hook(lambda stepping, *_: parameters(stepping))

    def _torch_output(self, module: Any, output: Any) -> None:
        self._record_all("output", type(module).__name__, list(torch_tensors(output)), torch_value)

    def _torch_layer(self, model: Any, module: Any, output: Any) -> None:
        if id(module) not in self._modules:
            self._modules.update((id(one), name) for name, one in model.named_modules())
            self._parameters.update((id(one), name) for name, one in model.named_parameters())
        name = self._modules.get(id(module), type(module).__name__)
        for tensor in list(torch_tensors(output))[: 1 if len(self.layers) < MOST_LAYERS else 0]:
            self.layers.append(torch_value(tensor, kind="output", name=name, step=0))

    def _torch_loss(self, tensor: Any) -> None:
        self._record_all("loss", "loss", [tensor], torch_value)

    def _torch_gradients(self, optimizer: Any) -> None:
        parameters = [parameter for parameter in _parameters(optimizer) if parameter.grad is not None]
        names = [self._parameters.get(id(parameter), "") for parameter in parameters]
        tensors = [parameter.grad for parameter in parameters]
        self._record_group("gradients", type(optimizer).__name__, tensors, names)

    def _torch_parameters(self, optimizer: Any) -> None:
        tensors = list(_parameters(optimizer))
        names = [self._parameters.get(id(parameter), "") for parameter in tensors]
        self._record_group("parameters", type(optimizer).__name__, tensors, names)

    def _listen_jax(self) -> None:
        """`jax.jit`, `grad` and `value_and_grad` give functions whose outputs are recorded; all else is jax's own."""
        import jax

        depth = [0]
        record = self._guarded(self._jax_output)

        class Recorded(WrappedFunction):
            """A function that jax made."""

            def __call__(self, *arguments: Any, **named: Any) -> Any:
                depth[0] += 1
                try:
                    output = self._jitted(*arguments, **named)
                finally:
                    depth[0] -= 1
                if not depth[0]:
                    record(self, output)
                return output

        wrap_jit(lambda jitted, _options: Recorded(jitted))
        for name in ("grad", "value_and_grad"):
            wrap(jax, name, lambda original: lambda *given, **named: Recorded(original(*given, **named)))

    def _jax_output(self, function: Any, output: Any) -> None:
        import jax

        leaves = [leaf for leaf in jax.tree_util.tree_leaves(output) if isinstance(leaf, jax.Array)]
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return
        numeric = [leaf for leaf in leaves if not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)]
        name = getattr(function, "__name__", "function")
        step = self._take("output", name) if numeric else None
        if step is None:
            return
        parts = [
            numpy_value(leaf, kind="output", name=f"{name} [{number}]", step=step)
            for number, leaf in enumerate(numeric[:MOST_NORMS])
        ]
        if len(parts) > MOST_OUTPUTS:  # the smallest (which include the loss) one by one; the others by their norms
            self.values.append(_group(parts, "output", name, step))
        self.values += sorted(parts, key=lambda part: part.size)[:MOST_OUTPUTS]

    def _record_all(self, kind: ValueKind, name: str, tensors: list[Any], value_of: Callable[..., Any]) -> None:
        step = self._take(kind, name) if tensors else None
        if step is None:
            return
        for number, tensor in enumerate(tensors[:MOST_OUTPUTS]):
            named = name if len(tensors) == 1 else f"{name} [{number}]"
            self.values.append(value_of(tensor, kind=kind, name=named, step=step))

    def _record_group(self, kind: ValueKind, name: str, tensors: list[Any], names: list[str]) -> None:
        """All of them as one value, whose sample are the norms of the single tensors."""
        step = self._take(kind, name) if tensors else None
        if step is None:
            return
        parts = [torch_value(tensor, kind=kind, name=name, step=step) for tensor in tensors]
        self.values.append(_group(parts, kind, name, step, names))


def _group(
    parts: list[RecordedValue], kind: ValueKind, name: str, step: int, names: list[str] | None = None
) -> RecordedValue:
    return RecordedValue(
        kind=kind,
        name=name,
        step=step,
        dtype=min(parts, key=lambda part: _bits(part.dtype)).dtype,
        size=sum(part.size for part in parts),
        nonfinite=sum(part.nonfinite for part in parts),
        norm=math.sqrt(sum(part.norm**2 for part in parts)),
        sample=tuple(part.norm for part in parts[:MOST_NORMS]),
        parts=tuple((names or [part.name for part in parts])[:MOST_NORMS]),
    )


def _bits(dtype: str) -> int:
    return {"bfloat16": 7, "float16": 10, "float32": 23, "float64": 52}.get(dtype, 64)


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def torch_value(tensor: Any, *, kind: ValueKind, name: str, step: int) -> RecordedValue:
    """Recorded value of a torch tensor."""
    import torch

    with torch.no_grad():
        tensor = tensor.detach()
        if tensor.layout != torch.strided:
            tensor = tensor.to_dense()
        flat = tensor.reshape(-1).to(torch.float64)
        finite = torch.isfinite(flat)
        size = flat.numel()
        flat = torch.where(finite, flat, torch.zeros_like(flat))
        stride = max(1, size // SAMPLE)
        return RecordedValue(
            kind=kind,
            name=name,
            step=step,
            dtype=str(tensor.dtype).removeprefix("torch."),
            size=size,
            nonfinite=size - int(finite.sum()),
            norm=float(torch.linalg.vector_norm(flat)),
            sample=tuple(flat[::stride][:SAMPLE].tolist()),
        )


def numpy_value(array: Any, *, kind: ValueKind, name: str, step: int) -> RecordedValue:
    """Recorded value of a jax or numpy array."""
    import numpy as np

    flat = np.asarray(array).reshape(-1).astype(np.float64)
    finite = np.isfinite(flat)
    flat = np.where(finite, flat, 0.0)
    stride = max(1, flat.size // SAMPLE)
    return RecordedValue(
        kind=kind,
        name=name,
        step=step,
        dtype=str(array.dtype),
        size=int(flat.size),
        nonfinite=int(flat.size - finite.sum()),
        norm=float(np.sqrt((flat**2).sum())),
        sample=tuple(flat[::stride][:SAMPLE].tolist()),
    )
