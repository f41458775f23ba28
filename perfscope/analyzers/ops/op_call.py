"""A recorded call of an op, and its cost."""

from __future__ import annotations

import json
from typing import Any, Literal

from msgspec import Struct

from perfscope.analyzers.devices import Computation
from perfscope.analyzers.ops.kernels import ITEM_SIZES, Operand, canonical_dtype

CostKind = Literal["product", "convolution", "attention", "memory"]

Argument = Operand | tuple[Operand, ...] | bool | int | float | str | list[int] | None


class OpCost(Computation, frozen=True, kw_only=True):
    """Computation of one call of an op, with the minimum bytes; convolutions and grouped products have no sizes."""

    kind: CostKind


class OpCall(Struct, frozen=True, kw_only=True):
    """A recorded call; arguments by position."""

    name: str
    """Without ``aten::`` and without the mark of an in-place op."""
    in_place: bool
    arguments: tuple[Argument, ...]

    def tensor(self, index: int) -> Operand:
        """Return the tensor at a position; ``TypeError`` without one."""
        argument = self.arguments[index]
        if not isinstance(argument, Operand):
            raise TypeError(f"{self.name}: no tensor at position {index}")
        return argument

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """All tensors in order, with lists flattened."""
        flat: list[Operand] = []
        for argument in self.arguments:
            if isinstance(argument, Operand):
                flat.append(argument)
            elif isinstance(argument, tuple):
                flat.extend(argument)
        return tuple(flat)

    def named(self, names: str) -> dict[str, Argument]:
        """Return the arguments by the names of the signature, separated by blanks."""
        return dict(zip(names.split(), self.arguments, strict=False))


def parse_call(name: str, shapes: str, dtypes: str, strides: str, values: str, list_dtype: str = "") -> OpCall:
    """Parse the recorded texts as one call.

    ``ValueError`` or ``TypeError`` for other text, and for a sparse tensor: it has a shape and no strides, and its work
    does not follow from the shape.
    """
    plain = name.removeprefix("aten::")
    in_place = plain.endswith("_") and not plain.endswith("__")
    dims, kinds, steps, written = (json.loads(text or "[]") for text in (shapes, dtypes, strides, values))
    arguments = []
    for index, (dim, kind) in enumerate(zip(dims, kinds, strict=False)):
        step = steps[index] if index < len(steps) else None
        value = written[index] if index < len(written) else ""
        if step == [] and dim and kind != "TensorList":
            raise ValueError(f"argument {index} is sparse")
        arguments.append(_argument(dim, str(kind), step, value, list_dtype))
    return OpCall(name=plain[:-1] if in_place else plain, in_place=in_place, arguments=tuple(arguments))


def _argument(dim: list[Any], kind: str, step: list[int] | None, value: Any, list_dtype: str) -> Argument:
    if kind == "TensorList":
        return tuple(Operand(shape=tuple(shape), dtype=list_dtype) for shape in dim)
    dtype = canonical_dtype(kind)
    if dtype in ITEM_SIZES:
        same = step is not None and len(step) == len(dim)
        return Operand(shape=tuple(dim), dtype=dtype, strides=tuple(step) if same and step is not None else None)
    if not isinstance(value, str) or not value:
        return None
    if value in ("True", "False"):
        return value == "True"
    try:
        parsed = json.loads(value.replace("True", "true").replace("False", "false"))
    except ValueError:
        return value
    return parsed if isinstance(parsed, int | float | list) else value
