"""Converts the weights of a checkpoint, array by array, into the names, shapes and layouts of another model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from perfscope.plugins.parity.checkpoints import Checkpoint, narrowed, widened
from perfscope.plugins.parity.checkpoints.float8 import EXPONENT_BITS
from perfscope.plugins.parity.document import Weight
from perfscope.plugins.parity.errors import DIGITS
from perfscope.plugins.parity.translation import Translation


class Conversion:
    """A checkpoint as another model has it. ``dtype``: of all arrays; ``None``: each as it is stored.

    An array that is made of arrays of several dtypes has the one with the most digits.
    """

    def __init__(self, checkpoint: Checkpoint, translation: Translation, dtype: str | None = None) -> None:
        self._checkpoint, self._translation = checkpoint, translation
        self._dtypes = {weight.name: weight.dtype for weight in checkpoint.weights}
        self._target = dtype

    def specs(self, order: Sequence[Weight]) -> list[Weight]:
        """Arrays to write, in the order of the other model's weights."""
        shapes = self._translation.shapes()
        return [
            replace(each, dtype=self._dtype(each.name), shape=shapes[each.name])
            for each in order
            if each.name in shapes
        ]

    def make(self, name: str) -> np.ndarray:
        """The array of the other model's weight ``name``, as it is stored; of its sources one is read at a time.

        ``DataError`` where it is tied and the checkpoint has several values for it.
        """
        sources = {self._dtypes[source] for source in self._translation.sources(name)}
        dtype = self._dtype(name)
        if len(sources) > 1:
            values = self._translation.made(name, _Widened(self._checkpoint, self._dtypes))
            return narrowed(values, dtype)
        stored = self._translation.made(name, self._checkpoint.arrays)
        own = sources.pop()
        return stored if own == dtype else narrowed(widened(stored, own), dtype)

    def _dtype(self, name: str) -> str:
        sources = {self._dtypes[source] for source in self._translation.sources(name)}
        if self._target is None and len(sources) > 1 and sources <= EXPONENT_BITS.keys():
            return "float16"  # holds the values of both
        return self._target or max(sources, key=lambda each: (DIGITS[each], each))


class _Widened(Mapping[str, np.ndarray]):
    """The values of stored arrays."""

    def __init__(self, checkpoint: Checkpoint, dtypes: Mapping[str, str]) -> None:
        self._arrays, self._dtypes = checkpoint.arrays, dtypes

    def __getitem__(self, name: str) -> np.ndarray:
        return widened(self._arrays[name], self._dtypes[name]).astype(np.float64)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)
