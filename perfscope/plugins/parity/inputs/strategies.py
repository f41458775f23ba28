"""``perfscope.inputs_like``: a strategy of Hypothesis for the inputs of a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from perfscope.model.errors import DataError
from perfscope.plugins.parity.inputs.regimes import derived, regime_names
from perfscope.plugins.parity.side import Input

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

SEEDS = 1 << 16


def inputs_like(example: Any, *, of: str = "adversarial", lengths: bool = True) -> SearchStrategy[Any]:
    """Inputs of the structure, dtypes and range of ``example``: arrays, tuples and dicts of them.

    ``of``: names of regimes, separated by commas. Without ``lengths`` arrays keep their shapes. A failure shrinks to
    the simplest regime. ``DataError`` if Hypothesis is not installed, or no regime applies to the example.
    """
    try:
        from hypothesis import strategies
    except ImportError as error:
        raise DataError("inputs_like needs Hypothesis: pip install hypothesis") from error
    leaves = [Input(name, np.asarray(value)) for name, value in _named(example, "")]
    shapes = [leaf.value.shape for leaf in leaves]
    names = []
    for name in regime_names(of):
        made = derived(name, leaves)
        if made is not None and (lengths or [value.shape for value in made] == shapes):
            names.append(name)
    if not names:
        raise DataError(f"no regime of {of} applies to these inputs")

    def draw(name: str, seed: int) -> Any:
        return _rebuilt(example, iter(derived(name, leaves, seed) or ()))

    return strategies.builds(draw, strategies.sampled_from(names), strategies.integers(0, SEEDS))


def _named(value: Any, name: str) -> list[tuple[str, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple | list) else None
    if items is None:
        return [(name, value)]
    return [pair for key, item in items for pair in _named(item, f"{name}/{key}" if name else str(key))]


def _rebuilt(value: Any, arrays: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rebuilt(item, arrays) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(_rebuilt(item, arrays) for item in value)
    return next(arrays)
