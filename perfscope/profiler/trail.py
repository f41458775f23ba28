"""The trail of a model's forward: its ops and layers in order, with the lines of the user's code."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from perfscope.profiler.source_files import SourceFiles

if TYPE_CHECKING:
    from perfscope.model.documents.trail import Layer, Op

MOST_OPS = 50_000
"""Most ops of the trail; later ones are not recorded."""
FLOATS = ("float64", "float32", "float16", "bfloat16")
_FRAMEWORKS = ("torch", "jax", "jaxlib", "flax", "equinox", "numpy")


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
        from perfscope.model.documents.trail import Op

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
        from perfscope.model.documents.trail import Layer

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
