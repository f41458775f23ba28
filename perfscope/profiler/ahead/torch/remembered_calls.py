"""Calls of a model that are answered as before: an evaluation of hundreds of batches before the first training step.

Tensors of a plan have no values, so what a call returns follows from the kinds of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

Answer = Any
_PLAIN = (bool, int, float, str, type(None))


class RememberedCalls:
    """What modules returned; for calls without gradients, whose inputs and results are tensors and plain values."""

    def __init__(self) -> None:
        """Nothing is remembered yet."""
        self._answers: dict[tuple[Any, ...], tuple[Any, Answer]] = {}

    def call(self, module: Any, arguments: Sequence[Any], named: Mapping[str, Any], original: Callable[[], Any]) -> Any:
        """What ``original()`` returned for such inputs, or returns."""
        key = None if torch.is_grad_enabled() else _key(module, arguments, named)
        if key is None:
            return original()
        if key not in self._answers:
            result = original()
            if _is_plain(result):
                self._answers[key] = module, result  # the module lives, so that its id stays its own
            return result
        return _renewed(self._answers[key][1])


def _key(module: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...] | None:
    parts: list[Any] = [id(module), module.training]
    for name, value in (*enumerate(arguments), *named.items()):
        if isinstance(value, torch.Tensor):
            parts.append((name, tuple(value.shape), value.dtype, value.device))
        elif isinstance(value, _PLAIN):
            parts.append((name, type(value), value))
        else:
            return None
    return tuple(parts)


def _is_plain(value: Answer) -> bool:
    if type(value) in (tuple, list):
        return all(map(_is_plain, value))
    if type(value) is dict:
        return all(map(_is_plain, value.values()))
    return isinstance(value, (torch.Tensor, *_PLAIN))


def _renewed(value: Answer) -> Answer:
    """Other objects of the same kind, which the program may change."""
    if isinstance(value, torch.Tensor):
        return value.detach()
    if type(value) in (tuple, list):
        return type(value)(map(_renewed, value))
    if type(value) is dict:
        return {key: _renewed(each) for key, each in value.items()}
    return value
