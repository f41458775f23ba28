"""Shared by both frameworks when they record a run of a model: files, lines, the trail of ops, the cotangents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from perfscope.plugins.parity.document import Arrays, Recording, Weight
from perfscope.plugins.precision import RECIPES

SEED = 0
"""Seed of all generators before the user's function is called, and of the cotangents."""

MOST_OP_BYTES = 256 << 20
"""Bytes of op results that a recording keeps. Later ops are compared by their norms and sums."""


class SideError(Exception):
    """One line on a problem with a model's function or its result."""


class RunRequest(Struct, frozen=True, kw_only=True):
    """How a model is run. ``dtype``: floating-point weights and inputs are cast to it; ``None``: unchanged.

    ``weights`` and ``inputs`` replace the function's own, with ``other_lengths`` also inputs of another shape.
    ``wide``: skip the program's casts to narrower dtypes (for the reference).
    """

    dtype: str | None = None
    weights: Arrays | None = None
    inputs: Sequence[np.ndarray] | None = None
    other_lengths: bool = False
    wide: bool = False
    recipe: str | None = None
    """Recipe of a narrow format by which the factors of its matrix products are rounded."""


def recipe_dtype(recipe: str | None) -> str | None:
    """dtype of the elements of a recipe, by which errors are judged."""
    return None if recipe is None else RECIPES[recipe].element.dtype


class Input(Struct, frozen=True):
    """An array that the model's function gives as input; ``name``: its key, or its number."""

    name: str
    value: np.ndarray


class Side(Protocol):
    """A model in one framework."""

    framework: str

    def describe(self, *, values: bool = True) -> tuple[list[Weight], Arrays]:
        """Its weights in the order of their use, and their values if wanted."""

    def inputs(self) -> list[Input]:
        """Its own inputs, in order."""

    def run(self, request: RunRequest) -> tuple[Recording, Arrays]:
        """Run it forward and backward."""

    def updates(self, optimizer: Any, starts: Arrays, gradients: Sequence[Arrays], dtype: str | None) -> list[Arrays]:
        """Its weights after each step of an optimizer, as `update.probing.Updates`."""


def cotangents(shapes: Iterable[tuple[int, ...]]) -> list[np.ndarray]:
    """Gradients of the outputs at the start of the backward: 1 for a scalar, else signs, random but fixed."""
    generator = np.random.default_rng(SEED)
    return [generator.integers(0, 2, shape) * 2.0 - 1.0 if shape else np.ones(()) for shape in shapes]


class OpValues:
    """Results of ops by their keys in a recording, as many as `MOST_OP_BYTES` allow."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        self._count, self._left = 0, MOST_OP_BYTES

    def add(self, value: np.ndarray) -> None:
        """Keep the next op's result if there is room for it."""
        self._left -= value.nbytes
        if self._left >= 0:
            self.arrays[f"op:{self._count}"] = value
        self._count += 1


def fitted_inputs(shapes: Sequence[tuple[int, ...]], request: RunRequest) -> list[np.ndarray]:
    """The inputs of a request in this side's layout, whose own have ``shapes``. ``SideError`` where they do not fit."""
    given = request.inputs or ()
    if len(shapes) != len(given):
        raise SideError(f"A has {len(given)} inputs and B {len(shapes)}")
    return [
        array if request.other_lengths and array.ndim == len(shape) else _fitted_input(array, shape, number)
        for number, (shape, array) in enumerate(zip(shapes, given, strict=True))
    ]


def _fitted_input(given: np.ndarray, shape: tuple[int, ...], number: int) -> np.ndarray:
    """The other side's input in this side's layout: channels may be last on one side and first on the other."""
    if given.shape == shape:
        return given
    if given.ndim == len(shape) and given.ndim > 2:
        for source, target in ((1, -1), (-1, 1)):
            moved = np.moveaxis(given, source, target)
            if moved.shape == shape:
                return moved
    raise SideError(f"input {number} is {list(given.shape)} in A and {list(shape)} in B")


def fitted_weights(own: Mapping[str, tuple[int, ...]], given: Arrays) -> None:
    """Check names and shapes of weights that replace a model's own; ``SideError`` on a mismatch."""
    for name, shape in own.items():
        if name not in given:
            raise SideError(f"no value for the weight {name}")
        if given[name].shape != shape:
            raise SideError(f"the weight {name} is {list(shape)}, its value {list(given[name].shape)}")
