"""Shared by both frameworks when they record a run of a model: files, lines, the trail of ops, the cotangents."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from perfscope.model.documents.parity import Arrays, Layer, Op, Recording, Weight
from perfscope.profiler.source_files import SourceFiles

MOST_OPS = 50_000
"""Most ops of the trail; later ones are not recorded."""
FLOATS = ("float64", "float32", "float16", "bfloat16")
_FRAMEWORKS = ("torch", "jax", "jaxlib", "flax", "equinox", "numpy")
SEED = 0
"""Seed of all generators before the user's function is called, and of the cotangents."""


class SideError(Exception):
    """One line on a problem with a model's function or its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """How a model is run. ``dtype``: floating-point weights and inputs are cast to it; ``None``: unchanged.

    ``weights`` and ``inputs`` replace the function's own. ``wide``: skip the program's casts to narrower dtypes (for
    the reference).
    """

    dtype: str | None = None
    weights: Arrays | None = None
    inputs: Sequence[np.ndarray] | None = None
    wide: bool = False


class Side(Protocol):
    """A model in one framework."""

    framework: str

    def describe(self) -> tuple[list[Weight], Arrays]:
        """Its weights in the order of their use, and their values."""

    def run(self, request: RunRequest) -> tuple[Recording, Arrays]:
        """Run it forward and backward."""


@dataclass(slots=True)
class Trail:
    """Ops and layers of a forward in order, with the work done up to each."""

    layers: list[Layer] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    roundings: int = 0
    terms: int = 0

    def work(self, terms: int) -> None:
        """Count an op that rounds its result, a sum of ``terms`` products or values."""
        self.roundings += 1
        self.terms += max(terms, 1)

    def add_op(self, name: str, line: str, array: np.ndarray, layers: int | None = None) -> None:
        """Add a result, as float64. ``layers``: number of complete layers before it, by default all so far."""
        if len(self.ops) >= MOST_OPS:
            return
        with np.errstate(over="ignore", invalid="ignore"):
            norm, total, absolute = np.sqrt(np.square(array).sum()), array.sum(), np.abs(array).sum()
        self.ops.append(
            Op(
                name=name,
                line=line,
                layers=len(self.layers) if layers is None else layers,
                size=array.size,
                norm=finite(norm),
                total=finite(total),
                absolute=finite(absolute),
            )
        )

    def add_layer(
        self, name: str, op: str, line: str, dtype: str, weights: Iterable[str] = (), follows: int | None = None
    ) -> int:
        """Add a layer; return its number."""
        layer = Layer(
            name=name,
            op=op,
            line=line,
            weights=tuple(weights),
            dtype=dtype,
            follows=follows,
            roundings=self.roundings,
            terms=self.terms,
        )
        self.layers.append(layer)
        return len(self.layers) - 1


def finite(value: Any) -> float | None:
    """The number, ``None`` if it is not finite or exceeds the range of a document."""
    return float(value) if math.isfinite(value) and abs(value) < 1e30 else None


def cotangents(shapes: Iterable[tuple[int, ...]]) -> list[np.ndarray]:
    """Gradients of the outputs at the start of the backward: 1 for a scalar, else signs, random but fixed."""
    generator = np.random.default_rng(SEED)
    return [generator.integers(0, 2, shape) * 2.0 - 1.0 if shape else np.ones(()) for shape in shapes]


def fitted_input(given: np.ndarray, shape: tuple[int, ...], number: int) -> np.ndarray:
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


class Lines:
    """Display names of lines in the user's code, ``model.py:38``."""

    def __init__(self) -> None:
        loaded = (getattr(sys.modules.get(name), "__file__", None) for name in _FRAMEWORKS)
        self._files = SourceFiles(Path.cwd(), [Path(file).parent for file in loaded if file])

    def name(self, frames: Iterable[tuple[str, int]]) -> str:
        """The first of the frames (file, line), innermost first, that is in the user's code."""
        for file, line in frames:
            if self._files.is_user(file) and Path(file).exists():
                return f"{self._files.name(file)}:{line}"
        return ""
