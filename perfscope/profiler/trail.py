"""The trail of a model's forward: its ops and layers in order, with the lines of the user's code."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct, field

from perfscope.model.documents.bounded_json import Count, Number, Texts, Value
from perfscope.profiler.source_files import SourceFiles

MOST_OPS = 50_000
"""Most ops of the trail; later ones are not recorded."""
FLOATS = ("float64", "float32", "float16", "bfloat16")
_FRAMEWORKS = ("torch", "jax", "jaxlib", "flax", "equinox", "numpy")


class Layer(Value, frozen=True, kw_only=True):
    """A point of the forward whose value was kept: the output of a module, or of an op that uses a weight."""

    name: str
    op: str
    line: str = ""
    """``model.py:38``, of the user's code."""
    weights: Texts = ()
    """Weights that it uses itself; ``NAME[i]`` of weights that are stacked by layer."""
    follows: Count | None = None
    """The layer whose result this layer takes: a product before its bias."""
    dtype: str = ""
    roundings: Count = 0
    """Ops on floating point from the inputs up to here, each of which rounds its result."""
    terms: Count = 0
    """Sum of the reduction lengths of these ops."""


class Op(Value, frozen=True, kw_only=True):
    """An op of the forward, with numbers about its result that no change of layout changes."""

    name: str
    line: str = ""
    layers: Count = 0
    """Layers that were complete before it."""
    size: Count
    norm: Number | None
    total: Number | None
    absolute: Number | None
    """Sum of the absolute values. ``None``: not finite."""


class Trail(Struct):
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
