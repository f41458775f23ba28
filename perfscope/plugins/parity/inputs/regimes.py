"""Regimes of inputs: each makes new inputs from the example inputs of a model, with the same meaning and range.

The kind of an input follows from its values: floating-point numbers, ids (of tokens), masks (booleans, or integers 0
and 1 next to ids of that shape), and positions (0, 1, 2, ... in each row). Ids stay among those of the example, which
are valid for certain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from perfscope.model.errors import UsageError
from perfscope.plugins.parity.side import Input

EXAMPLE = "example"
SEED = 0
TAIL = 1.5
"""Degrees of freedom of Student's t: with less than 2 the variance is infinite, with more than 1 the mean is not."""
MOST = 1e4
"""Largest value of heavy tails in standard deviations: few terms of a sum then count, and squares stay finite in
float32 and bfloat16."""
NEAR = 2.0**-10
"""Neighbours of opposite sign differ by this part, so that a sum keeps a thousandth of its terms."""
OFFSET = 1024.0
"""A mean of so many standard deviations: mean of squares minus square of the mean loses 20 bits."""
LONGER = 4

Kind = Literal["float", "ids", "mask", "positions", "other"]


class Example(Struct, frozen=True):
    """The example inputs of a model and what they are."""

    inputs: tuple[np.ndarray, ...]
    kinds: tuple[Kind, ...]
    length: int | None
    """Length of the sequences; ``None`` without sequences."""

    def mapped(self, change: Callable[[np.ndarray, Kind], np.ndarray]) -> list[np.ndarray]:
        """Every input changed by its kind."""
        return [change(value, kind) for value, kind in zip(self.inputs, self.kinds, strict=True)]

    def has(self, kind: Kind) -> bool:
        """Whether an input with more than one element is of this kind."""
        return any(own == kind and value.size > 1 for value, own in zip(self.inputs, self.kinds, strict=True))


Make = Callable[[Example, np.random.Generator], list[np.ndarray] | None]
"""New inputs; ``None`` if the regime does not apply to these."""


def derived(name: str, inputs: Sequence[Input], seed: int = SEED) -> list[np.ndarray] | None:
    """Inputs of a regime; ``None`` if it does not apply. Arrays keep their dtype, and most regimes their shape."""
    return REGIMES[name](example_of(inputs), np.random.default_rng(seed))


def example_of(inputs: Sequence[Input]) -> Example:
    """The inputs with their kinds."""
    whole = [each.value for each in inputs if each.value.dtype.kind in "iu" and each.value.size]
    ids = {value.shape for value in whole if value.max() > 1 and not _counts_up(value)}
    kinds = tuple(_kind(each, ids) for each in inputs)
    values = tuple(each.value for each in inputs)
    return Example(values, kinds, _length(values, kinds))


def _kind(given: Input, ids: set[tuple[int, ...]]) -> Kind:
    value = given.value
    if value.dtype.kind == "b":
        return "mask"
    if value.dtype.kind == "f":
        return "mask" if "mask" in given.name and np.isin(value, (0, 1)).all() else "float"
    if value.dtype.kind not in "iu" or not value.ndim:
        return "other"
    named = not given.name.rpartition("/")[2].isdigit()
    if np.isin(value, (0, 1)).all() and ("mask" in given.name if named else value.shape in ids):
        return "mask"
    return "positions" if ids and _counts_up(value) else "ids"


def _counts_up(value: np.ndarray) -> bool:
    size = value.shape[-1] if value.ndim else 0
    return size > 1 and bool((value == np.arange(size)).all())


def _length(values: Sequence[np.ndarray], kinds: Sequence[Kind]) -> int | None:
    """Last axis of ids, else the second axis of floating-point inputs with three."""
    pairs = list(zip(values, kinds, strict=True))
    of_ids = next((value.shape[-1] for value, kind in pairs if kind == "ids" and value.ndim <= 2), None)
    of_floats = next((value.shape[1] for value, kind in pairs if kind == "float" and value.ndim == 3), None)
    return of_ids or of_floats


def _scale(value: np.ndarray) -> float:
    found = float(np.std(np.asarray(value, np.float64)))
    return found if np.isfinite(found) and found > 0 else 1.0


def _floats(example: Example, change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray] | None:
    if not example.has("float"):
        return None
    return example.mapped(
        lambda value, kind: change(value.astype(np.float64)).astype(value.dtype) if kind == "float" else value
    )


def _given(example: Example, generator: np.random.Generator) -> list[np.ndarray]:
    """The example itself."""
    del generator
    return list(example.inputs)


def _random(example: Example, generator: np.random.Generator) -> list[np.ndarray] | None:
    """Other values of the example's mean, spread and ids."""
    if not example.has("float") and not example.has("ids"):
        return None

    def change(value: np.ndarray, kind: Kind) -> np.ndarray:
        if kind == "float":
            drawn = generator.normal(float(np.mean(value, dtype=np.float64)), _scale(value), value.shape)
            return np.asarray(drawn, value.dtype)
        return generator.choice(np.unique(value), value.shape) if kind == "ids" else value

    return example.mapped(change)


def _zeros(example: Example, generator: np.random.Generator) -> list[np.ndarray] | None:
    """Floating-point inputs 0, all ids the smallest one."""
    del generator
    if not example.has("float") and not example.has("ids"):
        return None
    return example.mapped(
        lambda value, kind: (
            np.full_like(value, 0 if kind == "float" else value.min()) if kind in ("float", "ids") else value
        )
    )


def _heavy_tails(example: Example, generator: np.random.Generator) -> list[np.ndarray] | None:
    """Few values that are thousands of times the others; ids of which few make up most."""
    if not example.has("float") and not example.has("ids"):
        return None

    def change(value: np.ndarray, kind: Kind) -> np.ndarray:
        if kind == "float":
            drawn = np.clip(generator.standard_t(TAIL, value.shape), -MOST, MOST)
            return (drawn * _scale(value)).astype(value.dtype)
        if kind == "ids":
            known = np.unique(value)
            return np.asarray(known[np.minimum(generator.zipf(TAIL, value.shape) - 1, len(known) - 1)])
        return value

    return example.mapped(change)


def _cancellation(example: Example, generator: np.random.Generator) -> list[np.ndarray] | None:
    """Neighbours of opposite sign, so that sums keep a thousandth of their terms."""
    del generator

    def change(value: np.ndarray) -> np.ndarray:
        flat = np.where(value.ravel() == 0, _scale(value), value.ravel())
        flat[1::2] = -flat[0 : len(flat) - len(flat) % 2 : 2] * (1 + NEAR)
        return flat.reshape(value.shape)

    return _floats(example, change)


def _offset(example: Example, generator: np.random.Generator) -> list[np.ndarray] | None:
    """A mean of 1024 standard deviations, which a variance in one pass does not survive."""
    del generator
    return _floats(example, lambda value: value + OFFSET * _scale(value))


def _ragged(example: Example, generator: np.random.Generator) -> list[np.ndarray] | None:
    """An odd length that no block size divides; with masks, rows of different lengths."""
    del generator
    shorter = None if example.length is None else _prime_below(example.length)
    if shorter is None:
        return None
    cut = _with_length(example, np.arange(shorter))
    rows = example.has("mask")
    return [_lengths(value) if rows and kind == "mask" else value
            for value, kind in zip(cut, example.kinds, strict=True)]  # fmt: skip


def _lengths(mask: np.ndarray) -> np.ndarray:
    """The mask of rows that end one after the other; the last one is whole."""
    if mask.ndim < 2:
        return mask
    ends = -(-mask.shape[-1] * np.arange(1, len(mask) + 1) // len(mask))
    ended = np.arange(mask.shape[-1]) < ends.reshape(-1, *([1] * (mask.ndim - 1)))
    return np.asarray(mask * ended, mask.dtype)


def _masks(example: Example, generator: np.random.Generator) -> list[np.ndarray] | None:
    """Masks with holes, the first row with padding on the left; each row keeps a place."""
    if not example.has("mask"):
        return None

    def change(value: np.ndarray, kind: Kind) -> np.ndarray:
        if kind != "mask" or not value.ndim:
            return value
        kept = generator.random(value.shape) < 0.5
        kept[0, ..., : value.shape[-1] // 2] = False
        kept[..., -1] = True
        changed = (value * kept).astype(value.dtype)
        return np.where(changed.any(-1, keepdims=True), changed, value)

    return example.mapped(change)


def _masked_out(example: Example, generator: np.random.Generator) -> list[np.ndarray] | None:
    """A mask whose last row keeps nothing."""
    del generator
    if not any(kind == "mask" and value.ndim > 1 for value, kind in zip(example.inputs, example.kinds, strict=True)):
        return None

    def change(value: np.ndarray, kind: Kind) -> np.ndarray:
        changed = value.copy()
        if kind == "mask" and value.ndim > 1:
            changed[-1] = 0
        return changed

    return example.mapped(change)


def _long(example: Example, generator: np.random.Generator) -> list[np.ndarray] | None:
    """Sequences four times as long, of the example's values in another order."""
    if example.length is None:
        return None
    more = generator.integers(0, example.length, (LONGER - 1) * example.length)
    return _with_length(example, np.concatenate([np.arange(example.length), more]))


def _with_length(example: Example, places: np.ndarray) -> list[np.ndarray]:
    """Sequences of the example's values at ``places``, on each axis that has the sequences' length."""

    def change(value: np.ndarray, kind: Kind) -> np.ndarray:
        first = 0 if value.ndim == 1 or (kind == "positions" and value.ndim < 2) else 1
        axes = [axis for axis in range(first, value.ndim) if value.shape[axis] == example.length]
        if kind in ("float", "ids"):
            axes = axes[:1]
        taken = value
        for axis in axes:
            taken = np.take(taken, places, axis)
        if kind == "positions" and axes:
            return np.broadcast_to(np.arange(len(places), dtype=value.dtype), taken.shape).copy()
        causal = kind == "mask" and len(axes) > 1 and np.array_equal(value, np.tril(np.ones_like(value)))
        return np.tril(np.ones_like(taken)) if causal else taken

    return example.mapped(change)


def _prime_below(length: int) -> int | None:
    numbers = (number for number in range(length - 1, 2, -1) if all(number % factor for factor in range(2, number)))
    return next(numbers, None)


REGIMES: dict[str, Make] = {
    EXAMPLE: _given,
    "zeros": _zeros,
    "random": _random,
    "heavy-tails": _heavy_tails,
    "cancellation": _cancellation,
    "offset": _offset,
    "ragged": _ragged,
    "masks": _masks,
    "masked-out": _masked_out,
    "long": _long,
}
"""By name, in the order in which they are run."""
ADVERSARIAL = "adversarial"
"""All regimes."""


def regime_names(text: str) -> list[str]:
    """Names of an option, separated by commas, in the order in which they are run. ``UsageError`` for another name."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in REGIMES and name != ADVERSARIAL]
    if unknown or not names:
        known = ", ".join((ADVERSARIAL, *REGIMES))
        raise UsageError(f"--inputs {text}: {unknown[0] if unknown else 'nothing'} must be one of {known}")
    return [name for name in REGIMES if name in names or ADVERSARIAL in names]
