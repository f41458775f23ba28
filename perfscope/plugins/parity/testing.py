"""``perfscope.assert_parity``: two implementations of one model, compared in a test, with rounding as the tolerance."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from perfscope.model.errors import DataError
from perfscope.plugins.parity.document import Arrays, Parity, Recording, Weight
from perfscope.plugins.parity.inputs import EXAMPLE, derived, regime_names
from perfscope.plugins.parity.maps import chosen
from perfscope.plugins.parity.sections import divergence_lines, headline, side_text
from perfscope.plugins.parity.side import Input, RunRequest, Side, SideError
from perfscope.plugins.parity.sides import Choices, Pair
from perfscope.plugins.parity.update.probing import responses

Result = TypeVar("Result")


def assert_parity(
    a: Any,
    b: Any,
    *,
    inputs: Any,
    weights: str | Path | None = None,
    maps: Mapping[str, str] | None = None,
    keep_weights: bool = False,
    regimes: str | None = None,
    dtype_a: str | None = None,
    dtype_b: str | None = None,
    optimizers: tuple[Any, Any] | None = None,
) -> Parity:
    """Fail unless both compute the same, forward and backward, up to what rounding explains.

    ``a``, ``b``: a PyTorch module, a model of Flax nnx, Equinox or Keras, (function, parameters) or (linen module,
    variables) of JAX, or a function without weights. ``inputs``: an array, a tuple of arguments, or a dict of named
    ones; both get them in their framework's arrays. ``b`` runs with the weights of ``a``, translated by names and
    shapes; ``weights``: a checkpoint with those of ``a``; ``maps``: name in ``a`` -> name in ``b``; ``keep_weights``:
    ``b`` has its own, which must be equal. ``regimes``: compare on inputs of these kinds too, such as
    ``"adversarial"``.

    ``optimizers``: of both, which make one step that must be equal too: ``"sgd"``, ``"adam"``, ``"adamw"``, or a
    function that makes it, of the module in PyTorch and without arguments in JAX.

    The error names the first layer that differs, with its line on both sides. ``DataError`` if a model cannot be run or
    weights do not fit. Returns the comparison on the inputs.
    """
    __tracebackhide__ = True
    choices = Choices(
        dtype_a=dtype_a,
        dtype_b=dtype_b,
        weights=None if weights is None else Path(weights),
        keep_weights=keep_weights,
        maps=chosen(tuple(f"{left}={right}" for left, right in (maps or {}).items())),
    )
    pair = Pair(Local("a", a, inputs), Local("b", b, inputs), choices)
    document = pair.document(pair.compare(), optimizers)
    _check(document, "")
    for name in _others(regimes):
        made = derived(name, pair.inputs())
        if made is not None:
            _check(pair.document(pair.compare(made)), f" on inputs of the regime {name}")
    return document


def _others(text: str | None) -> list[str]:
    return [name for name in regime_names(text) if name != EXAMPLE] if text is not None else []


def _check(document: Parity, where: str) -> None:
    __tracebackhide__ = True
    if document.verdict == "same":
        return
    lines = [headline(document) + where]
    lines += [] if document.first is None else [f"  {line}" for line in divergence_lines(document.first)]
    lines += [f"  {name.upper()}: {side_text(side)}" for name, side in (("a", document.a), ("b", document.b))]
    raise AssertionError("\n".join(lines))


class Local:
    """A model in this process."""

    def __init__(self, source: str, model: Any, inputs: Any) -> None:
        self.source = source
        self._side = _side(model, inputs)
        self.framework = self._side.framework

    def describe(self, *, values: bool = True) -> tuple[list[Weight], Arrays]:
        """Its weights, and their values if wanted. ``DataError`` if it cannot be run."""
        return self._try(lambda: self._side.describe(values=values))

    def inputs(self) -> list[Input]:
        """Its inputs."""
        return self._side.inputs()

    def run(self, name: str, request: RunRequest) -> tuple[Recording, Arrays]:
        """Run it; nothing is written."""
        del name
        return self._try(lambda: self._side.run(request))

    def probe(self, optimizer: Any) -> dict[str, dict[str, list[float]]]:
        """Responses of an optimizer to the probes of `update.rules`, by weight."""
        weights = [weight for weight in self.describe(values=False)[0] if weight.kind != "buffer"]
        return self._try(
            lambda: responses(weights, lambda starts, each: self._side.updates(optimizer, starts, each, "float64"))
        )

    def update(self, optimizer: Any, starts: Arrays, gradients: Arrays, dtype: str | None) -> Arrays:
        """The weights after one step."""
        return self._try(lambda: self._side.updates(optimizer, starts, [gradients], dtype)[0])

    def _try(self, run: Callable[[], Result]) -> Result:
        try:
            return run()
        except SideError as error:
            raise DataError(f"{self.source}: {error}") from error


def _side(model: Any, inputs: Any) -> Side:
    if _is_torch(model, inputs):
        import torch

        from perfscope.plugins.parity.torch_side import TorchSide

        given = _with_arrays(inputs, lambda array: torch.from_numpy(np.array(array)))
        module = model if isinstance(model, torch.nn.Module) else _module_of(model)
        return TorchSide(lambda: (copy.deepcopy(module), given), None)
    from perfscope.plugins.parity.jax_side import JaxSide

    arrays = _with_arrays(inputs, np.asarray)
    names = tuple(arrays) if isinstance(arrays, dict) else ()
    given = tuple(arrays.values()) if names else arrays
    if not isinstance(model, tuple) and not _is_plain(model):
        return JaxSide(lambda: (model, given), None)
    function: Any = None
    function, parameters = model if isinstance(model, tuple) else (lambda _, *each, **named: model(*each, **named), {})
    apply = getattr(function, "apply", function)

    def call(weights: Any, *each: Any) -> Any:
        return apply(weights, **dict(zip(names, each, strict=True))) if names else apply(weights, *each)

    return JaxSide(lambda: (call, parameters, given), None)


def _is_torch(model: Any, inputs: Any) -> bool:
    if isinstance(model, tuple) or importlib.util.find_spec("torch") is None:
        return False
    if not _is_plain(model):
        return "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module)
    import torch

    try:  # a function may be of either framework: what it makes of tensors shows of which
        given = _with_arrays(inputs, lambda array: torch.from_numpy(np.array(array)))
        result = model(**given) if isinstance(given, dict) else model(*_arguments(given))
    except Exception:
        return False
    return any(isinstance(leaf, torch.Tensor) for leaf in _leaves(result))


def _is_plain(model: Any) -> bool:
    return callable(model) and hasattr(model, "__name__") and not hasattr(model, "__dataclass_fields__")


def _module_of(function: Callable[..., Any]) -> Any:
    import torch

    class Function(torch.nn.Module):  # type: ignore[misc] # torch is not followed
        def forward(self, *arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

    return Function()


def _arguments(inputs: Any) -> Sequence[Any]:
    return inputs if isinstance(inputs, tuple | list) else (inputs,)


def _with_arrays(inputs: Any, change: Callable[[Any], Any]) -> Any:
    """The inputs with each array changed; arrays of PyTorch and JAX become numpy's first."""
    if isinstance(inputs, dict):
        return {key: _with_arrays(value, change) for key, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(_with_arrays(value, change) for value in inputs)
    if hasattr(inputs, "detach"):
        from perfscope.plugins.parity.torch_side import to_numpy

        return change(to_numpy(inputs))
    return change(np.asarray(inputs)) if hasattr(inputs, "shape") else inputs


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple | list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
