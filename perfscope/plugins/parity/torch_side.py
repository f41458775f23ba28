"""Records a PyTorch model: module outputs by hooks, ops by a dispatch mode, gradients by tensor hooks, in one pass."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from perfscope.plugins.parity.document import RECORDING_SCHEMA, Arrays, Kind, Recording, Weight
from perfscope.plugins.parity.errors import reduction_length
from perfscope.plugins.parity.heads import is_fused, of_config, with_heads
from perfscope.plugins.parity.side import (
    SEED,
    Input,
    OpValues,
    RunRequest,
    SideError,
    cotangents,
    fitted_inputs,
    fitted_weights,
    recipe_dtype,
)
from perfscope.plugins.parity.update.probing import RATE
from perfscope.plugins.precision import RECIPES, rounded_factors
from perfscope.profiler.trail import FLOATS, Lines, Trail

Model = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
_EXACT = frozenset({"copy_", "detach", "clone", "index", "embedding", "gather", "cat", "stack", "where", "masked_fill"})
"""Ops whose results are input values, unrounded."""
_COPIES = frozenset({"_unsafe_view", "clone", "copy_", "_to_copy"})
"""Ops that are not recorded. Neither are views."""
_TRANSPOSED = "Conv1D"
"""A linear layer of transformers whose weight is (in, out)."""


class TorchSide:
    """A model in PyTorch. ``make`` returns (module, inputs) each time, with the same weights."""

    framework = "torch"

    def __init__(self, make: Callable[[], Any], device: str | None) -> None:
        self._make, self._device = make, device
        self._lines = Lines()

    def _model(self, dtype: str | None, weights: Arrays | None) -> Model:
        module, inputs = self._make()
        if isinstance(inputs, dict):
            arguments, named = (), inputs
        else:
            arguments, named = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,), {}
        if dtype is not None:
            module = module.to(getattr(torch, dtype))
        module = module.to(self._device) if self._device is not None else module
        if weights is not None:
            own = {name: tensor for name, tensor in _tensors(module).items() if _is_float(tensor)}
            fitted_weights({name: tuple(tensor.shape) for name, tensor in own.items()}, weights)
            with torch.no_grad():
                for name, tensor in own.items():
                    tensor.copy_(torch.from_numpy(np.ascontiguousarray(weights[name])))
        return module, arguments, named

    def describe(self, *, values: bool = True) -> tuple[list[Weight], Arrays]:
        """Parameters and buffers of the state dict, tied ones once."""
        module, _, _ = self._model(None, None)
        names: dict[int, list[str]] = {}
        every = {name: value for name, value in _tensors(module, tied=True).items() if _is_float(value)}
        for name, tensor in every.items():
            names.setdefault(id(tensor), []).append(name)
        buffers = {name for name, _ in module.named_buffers()}
        weights = [
            Weight(
                name=same[0],
                shape=tuple(every[same[0]].shape),
                dtype=_dtype_name(every[same[0]]),
                kind="buffer" if same[0] in buffers else _kind(module, same[0]),
                aliases=tuple(same[1:]),
            )
            for same in names.values()
        ]
        weights = with_heads(weights, _heads(module) or None, "a") if any(map(is_fused, weights)) else weights
        return weights, {weight.name: to_numpy(every[weight.name]) for weight in weights if values}

    def inputs(self) -> list[Input]:
        """Tensors among its arguments."""
        _, arguments, named = self._model(None, None)
        return [Input(name, to_numpy(tensor)) for name, tensor in _named_leaves((*arguments, named), "")]

    def run(self, request: RunRequest) -> tuple[Recording, Arrays]:
        """Run it forward, and backward from the fixed cotangents of its outputs."""
        module, arguments, named = self._model(request.dtype, request.weights)
        inputs = list(_leaves((arguments, named)))
        given = inputs if request.inputs is None else _replaced(inputs, request)
        moved = [_input(tensor, request.dtype, self._device) for tensor in given]
        arguments, named = _rebuilt((arguments, named), iter(moved))
        recorder = Recorder(module, self._lines, wide=request.wide, recipe=request.recipe)
        with _default_dtype(request.dtype), recorder:
            outputs = [tensor for tensor in _leaves(module(*arguments, **named)) if _is_float(tensor)]
            recorder.stop()
            if not outputs:
                raise SideError("the model gives no floating-point tensor")
            for number, tensor in enumerate(outputs):
                recorder.add(f"output {number}" if len(outputs) > 1 else "output", "", tensor)
            _backward(outputs)
        arrays = recorder.arrays()
        arrays |= {f"input:{number}": to_numpy(tensor) for number, tensor in enumerate(moved)}
        own = {name: tensor for name, tensor in _tensors(module).items() if _is_float(tensor)}
        arrays |= {f"weight:{name}": to_numpy(tensor) for name, tensor in own.items()}
        gradients = {name: tensor.grad for name, tensor in own.items() if tensor.grad is not None}
        arrays |= {f"weight_gradient:{name}": to_numpy(gradient) for name, gradient in gradients.items()}
        recording = Recording(
            schema=RECORDING_SCHEMA,
            framework=self.framework,
            version=str(torch.__version__),
            device=str(outputs[0].device),
            dtype=recipe_dtype(request.recipe) or request.dtype or _dtype_name(next(iter(own.values()), outputs[0])),
            weights=tuple(self.describe(values=False)[0]),
            layers=tuple(recorder.trail.layers),
            ops=tuple(recorder.trail.ops),
            outputs=len(outputs),
            notes=("it is in training mode: dropout differs from run to run",) if _drops(module) else (),
        )
        return recording, arrays

    def updates(self, optimizer: Any, starts: Arrays, gradients: Sequence[Arrays], dtype: str | None) -> list[Arrays]:
        """Its parameters after each step; frozen ones get no gradient."""
        module, _, _ = self._model(dtype, None)
        parameters = dict(module.named_parameters())

        def like(value: np.ndarray, parameter: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(value)).to(parameter)

        with torch.no_grad():
            for name, parameter in parameters.items():
                if name in starts:
                    parameter.copy_(like(starts[name], parameter))
        made, found = _optimizer(optimizer, module), []
        for given in gradients:
            for name, parameter in parameters.items():
                known = parameter.requires_grad and name in given
                parameter.grad = like(given[name], parameter) if known else None
            made.step()
            found.append({name: to_numpy(parameter) for name, parameter in parameters.items()})
        return found


def _heads(module: nn.Module) -> str:
    """Heads of a model of transformers whose fused projections alternate."""
    told = getattr(getattr(module, "config", None), "to_dict", None)
    return of_config(told()) if told is not None else ""


def _optimizer(made: Any, module: nn.Module) -> Any:
    """The optimizer of a name of `NAMED`, or of a function of the module."""
    if callable(made):
        return made(module)
    classes = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    return classes[made](module.parameters(), lr=RATE)


@contextmanager
def _default_dtype(dtype: str | None) -> Iterator[None]:
    """New tensors are float64 in a float64 run: programs fill them with the smallest number of the model's dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64 if dtype == "float64" else before)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Recorder(TorchDispatchMode):  # type: ignore[misc] # torch is not followed
    """Records one forward. Its hooks are removed when it ends."""

    def __init__(self, module: nn.Module, lines: Lines, *, wide: bool, recipe: str | None = None) -> None:
        super().__init__()
        self.trail = Trail()
        self._lines, self._wide, self._active = lines, wide, True
        self._recipe = None if recipe is None else RECIPES[recipe]
        self._noise = torch.Generator().manual_seed(SEED)
        self._values: list[np.ndarray] = []
        self._results = OpValues()
        self._gradients: dict[int, np.ndarray] = {}
        self._last = ("", "")
        self._running: list[str] = []
        self._storages = {tensor.untyped_storage().data_ptr(): name for name, tensor in _tensors(module).items()}
        self._derived: list[torch.Tensor] = []  # kept, so that their storage is not reused
        self._own: dict[str, tuple[str, ...]] = {}
        self._handles: list[Any] = []
        self._calls: dict[str, int] = {}
        shared = {id(tensor): name for name, tensor in _tensors(module).items()}
        for name, part in module.named_modules():
            own = (*part.parameters(recurse=False), *part.buffers(recurse=False))
            weights = [shared[id(tensor)] for tensor in own if id(tensor) in shared]
            self._own[name] = tuple(dict.fromkeys(weights)) if not any(part.children()) else ()
            self._handles.append(part.register_forward_pre_hook(self._entering(name)))
            self._handles.append(part.register_forward_hook(self._leaving(name)))

    def stop(self) -> None:
        """End the forward."""
        self._active = False
        for handle in self._handles:
            handle.remove()

    def add(self, name: str, op: str, tensor: torch.Tensor, weights: tuple[str, ...] = ()) -> None:
        """Keep a value, and its gradient when the backward reaches it."""
        made_by, line = self._last
        number = self.trail.add_layer(name, op or made_by, line, _dtype_name(tensor), weights)
        self._values.append(to_numpy(tensor))
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: self._gradients.__setitem__(number, to_numpy(gradient)))

    def arrays(self) -> Arrays:
        """Values and gradients by the names of a recording."""
        arrays = {f"layer:{number}": value for number, value in enumerate(self._values)}
        arrays |= {f"gradient:{number}": value for number, value in self._gradients.items()}
        return arrays | self._results.arrays

    def _entering(self, name: str) -> Callable[..., None]:
        def enter(*_: Any) -> None:
            self._running.append(name)

        return enter

    def _leaving(self, name: str) -> Callable[..., None]:
        def leave(module: nn.Module, _: Any, output: Any) -> None:
            self._running.pop()
            if not self._active or not name:  # the whole model's output is kept with the outputs
                return
            call = self._calls[name] = self._calls.get(name, 0) + 1
            kept = [tensor for tensor in _leaves(output) if _is_float(tensor)]
            for number, tensor in enumerate(kept):
                suffix = (f"[{number}]" if len(kept) > 1 else "") + (f" call {call}" if call > 1 else "")
                self.add(name + suffix, type(module).__name__, tensor, self._own[name] if number == 0 else ())

        return leave

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if self._wide and kwargs.get("dtype") in (torch.float32, torch.float16, torch.bfloat16):
            kwargs["dtype"] = torch.float64
        if self._recipe is not None:
            args = rounded_factors(_name(func), args, self._recipe, self._noise)
        result = func(*args, **kwargs)
        if self._active:
            self._record(func, list(_leaves((args, kwargs))), result)
        return result

    def _record(self, func: Any, inputs: list[torch.Tensor], result: Any) -> None:
        name = _name(func)
        used = {weight for tensor in inputs if (weight := self._weight(tensor))}
        outputs = [tensor for tensor in _leaves(result) if _is_float(tensor)]
        if not outputs:
            return
        if all(self._weight(tensor) for tensor in inputs) and inputs:
            for tensor in outputs:  # computed from weights only, or a weight itself
                self._derived.append(tensor)
                self._storages.setdefault(tensor.untyped_storage().data_ptr(), min(used))
            return
        if not func.is_view and name not in _EXACT:
            self.trail.work(_terms(name, inputs, outputs[0]))
        line = self._lines.name(_frames())
        if not func.is_view and name not in _COPIES:
            self._last = (name, line)
            self.trail.add_op(name, line, outputs[0].detach().double().cpu().numpy())
            if not self._wide:  # the reference's ops are not compared
                self._results.add(to_numpy(outputs[0]))
        inside = {weight for module in self._running for weight in self._own[module]}
        for weight in sorted(used - inside):
            self.add(weight, name, outputs[0], (weight,))

    def _weight(self, tensor: torch.Tensor) -> str:
        return self._storages.get(tensor.untyped_storage().data_ptr(), "") if tensor.numel() else ""


def _name(func: Any) -> str:
    return str(func.name().removeprefix("aten::").partition(".")[0])


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Its values; bfloat16 and float16 become float32."""
    tensor = tensor.detach().cpu()
    narrow = tensor.dtype in (torch.bfloat16, torch.float16)
    array: np.ndarray = (tensor.float() if narrow else tensor).numpy().copy()
    return array


def _backward(outputs: list[torch.Tensor]) -> None:
    wanted = [tensor for tensor in outputs if tensor.requires_grad]
    if wanted:
        signs = cotangents(tuple(tensor.shape) for tensor in outputs)
        gradients = [
            torch.from_numpy(sign).to(tensor)
            for sign, tensor in zip(signs, outputs, strict=True)
            if tensor.requires_grad
        ]
        torch.autograd.backward(wanted, gradients)


def _terms(name: str, inputs: list[torch.Tensor], output: torch.Tensor) -> int:
    """The reduction length of an op."""
    return reduction_length(name, [tuple(tensor.shape) for tensor in inputs], tuple(output.shape))


def _frames() -> Iterator[tuple[str, int]]:
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]


def _tensors(module: nn.Module, *, tied: bool = False) -> dict[str, torch.Tensor]:
    """Parameters and the buffers of the state dict; ``tied``: under all their names."""
    kept = module.state_dict(keep_vars=True).keys()
    parts = (*module.named_parameters(remove_duplicate=not tied), *module.named_buffers(remove_duplicate=not tied))
    return {name: tensor for name, tensor in parts if name in kept}


def _kind(module: nn.Module, name: str) -> Kind:
    owner, _, last = name.rpartition(".")
    part = module.get_submodule(owner)
    tensor = getattr(part, last)
    if last != "weight" or tensor.ndim < 2:
        return ""
    if isinstance(part, nn.Embedding):
        return "embedding"
    if type(part).__name__ == _TRANSPOSED:
        return "linear_in_out"
    return "linear" if tensor.ndim == 2 else "conv" if "Conv" in type(part).__name__ else ""


def _drops(module: nn.Module) -> bool:
    return any(part.training and getattr(part, "p", 0) for part in module.modules() if "Dropout" in type(part).__name__)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    """Tensors of nested lists, tuples, dicts and dataclass-like outputs, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)


def _rebuilt(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The same structure with other tensors."""
    if isinstance(value, torch.Tensor):
        return next(tensors)
    if isinstance(value, dict):
        return {key: _rebuilt(item, tensors) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_rebuilt(item, tensors) for item in value)
    return value


def _named_leaves(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    """As `_leaves`, with the keys and numbers that lead to each."""
    if isinstance(value, torch.Tensor):
        yield name, value
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple | list) else ()
    for key, item in items:
        inner = f"{name}/{key}" if name else "" if isinstance(item, dict) and isinstance(key, int) else str(key)
        yield from _named_leaves(item, inner)


def _replaced(own: list[torch.Tensor], request: RunRequest) -> list[torch.Tensor]:
    given = fitted_inputs([tuple(tensor.shape) for tensor in own], request)
    return [
        torch.from_numpy(np.ascontiguousarray(array)).to(tensor.dtype) for tensor, array in zip(own, given, strict=True)
    ]


def _input(tensor: torch.Tensor, dtype: str | None, device: str | None) -> torch.Tensor:
    cast = tensor.detach().to(getattr(torch, dtype)) if dtype in FLOATS and _is_float(tensor) else tensor.detach()
    return cast.to(device) if device is not None else cast
