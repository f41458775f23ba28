"""Matrix products of a program: the kernels that contain one, and the casts of its factors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
from msgspec import Struct

from perfscope.analyzers.hlo.cost.module import InstructionCost, ModuleCost
from perfscope.analyzers.hlo.cost.products import WindowDim, dims_of, window_dims
from perfscope.analyzers.hlo.module import HloModule, Instruction, Shape
from perfscope.analyzers.hlo.views import Fusions, path_across

_MOST_MEETINGS = 1 << 20
"""Maximum number of pairs of output and window element examined per axis: that of 1,024 positions."""


class Kernels(Struct, frozen=True, kw_only=True):
    """Instructions of a program that contain others: fusions and asynchronous ops, by the computations they call."""

    callers: Mapping[str, tuple[InstructionCost, ...]]

    def around(self, row: InstructionCost) -> list[InstructionCost]:
        """Return the launched instructions around an instruction: itself, or the kernels whose body contains it."""
        result, waiting, seen = [], [row], {row.computation}
        while waiting:
            cost = waiting.pop()
            if cost.place == "launched":
                result.append(cost)
                continue
            for caller in self.callers.get(cost.computation, ()):
                if caller.place == "launched" or caller.computation not in seen:
                    seen.add(caller.computation)
                    waiting.append(caller)
        return result


def kernels_of(cost: ModuleCost) -> Kernels:
    """The kernels of a program."""
    result: dict[str, list[InstructionCost]] = {}
    for row in cost.rows:
        if row.place != "control":
            for name in row.instruction.called:
                result.setdefault(name, []).append(row)
    return Kernels(callers={name: tuple(rows) for name, rows in result.items()})


def casts(
    module: HloModule, fusions: Fusions, computation: str, name: str
) -> Iterator[tuple[Instruction, Instruction]]:
    """Yield the conversions that a value went through, each with its operand; ``fusions`` as from `fusions_of`."""
    steps = path_across(module, fusions, module.computations[computation], name)
    return (
        (instruction, source) for (_, instruction), (_, source) in pairwise(steps) if instruction.opcode == "convert"
    )


# Corresponding axes of two factors and their product, for dots and for convolutions that were dots.
# XLA for TPU writes every matrix product as a convolution. An axis that both factors and the product have (a batch),
# that is summed, or that only one factor has, becomes a spatial axis with a window that no other position falls into:
# ``size=4 stride=3 lhs_dilate=4`` over four is position by position. Which case applies follows from the positions that
# meet (``hlo/cost/products.py`` has XLA's definition of a window).


class ProductAxes(Struct, frozen=True, kw_only=True):
    """A name for every axis: axes with one name correspond, and a name that the result lacks is summed over."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    result: tuple[int, ...]


def dot_axes(instruction: Instruction, shapes: Sequence[Shape]) -> ProductAxes:
    """Return the axes of a ``dot``; ``ValueError`` if the two factors name different numbers of axes."""
    rest = instruction.attributes
    batch, sums = dims_of(rest.get("lhs_batch_dims", "")), dims_of(rest.get("lhs_contracting_dims", ""))
    their_batch, their_sums = dims_of(rest.get("rhs_batch_dims", "")), dims_of(rest.get("rhs_contracting_dims", ""))
    left = tuple(range(len(shapes[0].dims)))
    shared = dict(zip((*their_batch, *their_sums), (*batch, *sums), strict=True))
    right = tuple(shared.get(axis, len(left) + axis) for axis in range(len(shapes[1].dims)))
    rows = [axis for axis in left if axis not in (*batch, *sums)]
    columns = [name for axis, name in enumerate(right) if axis not in shared]
    return ProductAxes(left=left, right=right, result=(*batch, *rows, *columns))


def convolution_axes(instruction: Instruction, shapes: Sequence[Shape]) -> ProductAxes | None:
    """Return the axes of a ``convolution`` that is a matrix product; ``None`` for others, or for invalid attributes."""
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", instruction.attributes.get("dim_labels", ""))
    windows = window_dims(instruction.attributes.get("window", ""))
    if labels is None or windows is None or len(shapes) != 2 or instruction.shape.parts:
        return None
    if any(instruction.attributes.get(key, "1") != "1" for key in ("feature_group_count", "batch_group_count")):
        return None
    texts = (labels[1], labels[2], labels[3])
    spatial = "".join(map(str, range(len(windows))))
    if [sorted(text) for text in texts] != [sorted(spatial + more) for more in ("bf", "io", "bf")]:
        return None
    every = [shape.dims for shape in (*shapes, instruction.shape)]
    if len(windows) > 9 or any(len(text) != len(dims) for text, dims in zip(texts, every, strict=True)):
        return None
    names: list[dict[str, int]] = [{"b": 0, "f": 1}, {"i": 1, "o": 2}, {"b": 0, "f": 2}]
    flips = _flips(instruction, len(windows))
    for index, (window, flipped) in enumerate(zip(windows, flips, strict=True)):
        label = str(index)
        sizes = [dims[text.index(label)] for text, dims in zip(texts, every, strict=True)]
        axes = _axis(window, flipped, sizes)
        if axes is None:
            return None
        for side, name in zip(names, axes, strict=True):
            side[label] = 3 + 3 * index + name
    ids = [tuple(side[label] for label in text) for side, text in zip(names, texts, strict=True)]
    lengths: dict[int, int] = {}
    for numbers, dims in zip(ids, every, strict=True):
        for name, length in zip(numbers, dims, strict=True):
            if lengths.setdefault(name, length) != length:
                return None
    return ProductAxes(left=ids[0], right=ids[1], result=ids[2])


def _flips(instruction: Instruction, count: int) -> list[bool]:
    """Return whether the window runs backwards along each axis."""
    match = re.search(r"rhs_reversal=([01x]+)", instruction.attributes.get("window", ""))
    texts = match[1].split("x") if match is not None else []
    return [text == "1" for text in texts] if len(texts) == count else [False] * count


def _axis(window: WindowDim, flipped: bool, sizes: Sequence[int]) -> tuple[int, int, int] | None:
    """Return names of a spatial axis in both factors and the result, equal for corresponding ones.

    ``None``: no product.

    Axes with one element have no name.
    """
    left, right, result = sizes
    if (left, right, result) == (1, 1, 1):
        return 0, 1, 2
    if window.size != right or min(window.stride, window.lhs_dilate, window.rhs_dilate) < 1:
        return None
    if min(sizes) < 1 or right * result > _MOST_MEETINGS:
        return None
    outputs, elements = np.arange(result)[:, None], np.arange(right)[None, :]
    positions = outputs * window.stride + elements * window.rhs_dilate - window.pad_low
    meets = (positions % window.lhs_dilate == 0) & (positions >= 0) & (positions <= (left - 1) * window.lhs_dilate)
    at_output, at_element = np.nonzero(meets)
    at_left = positions[meets] // window.lhs_dilate
    if flipped:
        at_element = right - 1 - at_element
    longest = max(sizes)
    if len(at_left) != longest:
        return None
    # each axis with more than one element must advance together with the others
    order = np.argsort(at_output if result == longest else at_left)
    for length, places in ((left, at_left), (right, at_element), (result, at_output)):
        if length not in (1, longest) or (length > 1 and not np.array_equal(places[order], np.arange(longest))):
            return None
    return 0 if left > 1 else 1, 0 if right > 1 else 1, 0 if result > 1 else 2
